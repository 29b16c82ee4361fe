"""Request and response models of maintenance and checks: the fields of the verbs' `--json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, StrictBool

from frazil.core.errors import InvalidInput
from frazil.doors.http.admin.models import ErrorBody, Given, Positive, Topic
from frazil.doors.http.admin.paging import Page

State = Literal["queued", "running", "done", "failed", "cancelled"]


class JobModel(BaseModel):
    id: str
    topic: str | None
    state: State
    total: int | None = Field(description="estimated total; null while unknown")
    created_us: int
    started_us: int | None
    ended_us: int | None
    error: ErrorBody | None


class OfTopic(Given):
    topic: Topic | None = Field(None, description="all topics if null")

    def arguments(self) -> list[str]:
        return [] if self.topic is None else [self.topic]


# --- maintenance


class NewMaintenance(Given):
    verb: Literal["compact", "expire", "orphans", "maintain"]
    topic: Topic | None = Field(None, description="all tables if null")
    dry_run: StrictBool = Field(False, description="report what would be done, without changes")
    older_than_ms: Positive | None = Field(None, description="for expire and orphans; null uses the settings")
    keep: Positive | None = Field(None, description="for expire: the number of snapshots to keep at any age")
    force: StrictBool = Field(False, description="for expire: allow less than an hour")
    orphans: StrictBool = Field(True, description="for maintain: also remove orphan files")

    def check(self) -> None:
        """Refuse a field of another verb."""
        of_verb = {"compact": (), "expire": ("older_than_ms", "keep", "force"), "orphans": ("older_than_ms",)}
        own = of_verb.get(self.verb, ("orphans",))
        for name in ("older_than_ms", "keep", "force", "orphans"):
            if name in self.model_fields_set and name not in own:
                raise InvalidInput(f"{name}: {self.verb} does not take it; leave it out", field=name)

    def arguments(self) -> list[str]:
        given = [] if self.topic is None else [self.topic]
        given += ["--dry-run"] if self.dry_run else []
        given += [] if self.older_than_ms is None else ["--older-than", f"{self.older_than_ms}ms"]
        given += [] if self.keep is None else ["--keep", str(self.keep)]
        given += ["--force"] if self.force else []
        return given + ([] if self.orphans else ["--no-orphans"])


class MaintenanceFailure(BaseModel):
    table: str
    message: str


class MaintenanceResult(BaseModel):
    """`tables` are as the verb prints them with `--json`; `failed` are those that failed."""

    tables: list[dict[str, Any]]
    failed: list[MaintenanceFailure]


class MaintenanceJobModel(JobModel):
    verb: str
    dry_run: bool
    tables: int = Field(description="done so far")
    result: MaintenanceResult | None


class MaintenanceJobPage(Page[MaintenanceJobModel]):
    pass


# --- checks of the log


class NewCheck(OfTopic):
    pass


class CheckResult(BaseModel):
    """As in `frazil log check --json`."""

    topics: list[dict[str, Any]]


class CheckJobModel(JobModel):
    bytes: int = Field(description="read so far")
    result: CheckResult | None


class CheckJobPage(Page[CheckJobModel]):
    pass
