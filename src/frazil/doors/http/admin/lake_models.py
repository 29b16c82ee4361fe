"""Response models of tables, the pipeline and verifications: the fields of the verbs' `--json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from frazil.doors.http.admin.jobs.models import JobModel, OfTopic
from frazil.doors.http.admin.paging import Page

# --- tables and the pipeline


class TopicStatus(BaseModel):
    """One topic; `table_end` is null if the table has none of its rows."""

    topic: str
    table: str
    log_end: int | None
    table_end: int | None
    lag_rows: int | None
    lag_bytes: int | None
    lag_ms: int | None
    committed_ms: int | None
    snapshot_id: int | None
    last_error: str | None
    table_time_us: int | None = Field(
        description="the time of `table_end`: now, or that of the mover's last report if the catalog does not answer"
    )


class PipelineStatus(BaseModel):
    """As in `frazil pipeline status --json`, with paginated topics."""

    mover: str
    mover_pid: int | None
    mover_host: str | None
    error: str | None
    since_us: int | None = Field(description="since when the mover waits for its catalog or store")
    next_try_us: int | None = Field(description="when it retries")
    lake_error: str | None = Field(
        description="why the catalog or the store did not answer now; ends are the last known"
    )
    maintenance: dict[str, Any] | None
    topics: list[TopicStatus]
    next: str | None = Field(description="for `after` of the next page of topics; null on the last one")


class TableSummary(BaseModel):
    """As in `frazil table list --json`; `ends` has the committed end of each log."""

    table: str
    rows: int
    files: int
    bytes: int
    snapshots: int
    committed_ms: int | None
    ends: dict[str, int]


class TablePage(Page[TableSummary]):
    pass


class TableColumn(BaseModel):
    name: str
    type: str
    required: bool


class TableSnapshot(BaseModel):
    snapshot_id: int
    time_ms: int
    operation: str | None


class TablePartition(BaseModel):
    partition: str
    files: int
    rows: int
    bytes: int
    small_files: int
    small_bytes: int


class TableDescription(TableSummary):
    """As in `frazil table describe --json`."""

    location: str
    columns: list[TableColumn]
    partitioning: str
    properties: dict[str, str]
    history: list[TableSnapshot]
    partitions: list[TablePartition]


# --- verify


class NewVerify(OfTopic):
    pass


class VerifyProblem(BaseModel):
    kind: str
    start: int
    end: int
    detail: str


class RenumberedLog(BaseModel):
    """A former log: its rows from `cut` on, `rows` of them, became those from `table_end` on."""

    log_id: str
    cut: int
    table_end: int
    rows: int
    time_us: int


class Proof(BaseModel):
    topic: str
    table: str
    proven: bool
    end: int
    in_table: int
    in_log: int
    in_objects: int = 0
    transformed: int
    checksums: int
    checked: int
    removed_by_retention: int
    dropped: list[tuple[int, int]]
    accepted_gaps: list[tuple[int, int]]
    renumbered: list[RenumberedLog]
    tables: dict[str, int] = {}
    redecoded: int = 0
    problems: list[VerifyProblem]


class VerifyResult(BaseModel):
    """As in `frazil verify --json`."""

    proven: bool
    topics: list[Proof]


class VerifyJobModel(JobModel):
    rows: int = Field(description="read so far; rows of a table are read twice")
    result: VerifyResult | None


class VerifyJobPage(Page[VerifyJobModel]):
    pass
