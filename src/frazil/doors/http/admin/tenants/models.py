"""Request and response models of tenants."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field, StrictBool

from frazil.core.settings.lake import MIB
from frazil.core.settings.telemetry import FILE_BYTES_MAX, FRESHNESS_MS_MAX, FRESHNESS_MS_MIN
from frazil.doors.http.admin.keys import IssuedKey
from frazil.doors.http.admin.models import Given, IsNumber, Positive, Retention, RetentionModel
from frazil.doors.http.admin.paging import Page
from frazil.node.access.keys import OVERLAP_MS_MAX
from frazil.node.telemetry.tenants import COLUMN_PATTERN, KEY_LENGTH_MAX, LIFTED_MAX
from frazil.telemetry.signals import NAME_LENGTH_MAX

NAME_PATTERN = rf"^[a-z0-9_][a-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}$"
_Name: dict[str, Any] = {"pattern": NAME_PATTERN}
TenantPath = Annotated[str, Path(json_schema_extra=_Name)]


class Lifting(Given):
    """An attribute that gets its own column."""

    source: Literal["resource", "scope", "item"] = Field(description="`item`: the span, the log record or the point")
    key: str = Field(min_length=1, max_length=KEY_LENGTH_MAX)
    column: str = Field(json_schema_extra={"pattern": f"^{COLUMN_PATTERN}$"})
    type: Literal["string", "int64", "double", "bool"] = "string"


class TenantSettings(Given):
    """What is left out stays; null restores that of `telemetry` in the settings."""

    requests_per_second: Positive | None = None
    bytes_per_second: Positive | None = None
    connections: Positive | None = None
    stored_bytes: Positive | None = None
    datasets: Positive | None = None
    tables: Positive | None = None
    retention: Retention | None = Field(None, description="of the logs of its datasets")
    lifted: Annotated[list[Lifting], Field(max_length=LIFTED_MAX)] | None = None
    freshness_ms: Annotated[int, Field(ge=FRESHNESS_MS_MIN, le=FRESHNESS_MS_MAX), IsNumber] | None = None
    target_file_bytes: Annotated[int, Field(ge=MIB, le=FILE_BYTES_MAX), IsNumber] | None = None

    def given(self) -> dict[str, Any]:
        """Return what the caller has sent, with nulls."""
        sent = self.model_dump(include=self.model_fields_set - {"tenant", "key"})
        if sent.get("retention") is not None and self.retention is not None:
            sent["retention"] = self.retention.as_settings()
        return sent


class NewTenant(TenantSettings):
    tenant: str = Field(json_schema_extra=_Name)
    key: StrictBool = Field(True, description="whether it gets an API key; only while security is on")


class KeyOfTenant(Given):
    key_id: str | None = Field(None, json_schema_extra={"pattern": "^[a-z2-7]{12}$"}, description="null: its only key")
    overlap_ms: Annotated[int, Field(ge=0, le=OVERLAP_MS_MAX), IsNumber] = Field(
        0, description="the old secret stays valid for this time"
    )


class TenantLimitsModel(BaseModel):
    requests_per_second: int | None = None
    bytes_per_second: int | None = None
    connections: int | None = None
    stored_bytes: int | None = None
    datasets: int | None = None
    tables: int | None = None


class EffectiveModel(BaseModel):
    limits: TenantLimitsModel
    freshness_ms: int
    target_file_bytes: int


class LiftedModel(BaseModel):
    source: str
    key: str
    column: str
    type: str


class TenantModel(BaseModel):
    """`effective` is what applies; the other fields are what was set."""

    tenant: str
    created_us: int
    deleting: bool = Field(description="it accepts nothing any more")
    datasets: list[str]
    limits: TenantLimitsModel
    retention: RetentionModel | None
    lifted: list[LiftedModel]
    freshness_ms: int | None
    target_file_bytes: int | None
    effective: EffectiveModel


class TenantDescription(TenantModel):
    keys: list[str] | None = Field(description="ids of its API keys; null while security is off")


class MadeTenant(TenantDescription):
    key: IssuedKey | None = Field(description="null while security is off, or if none was wanted")


class TenantPage(Page[TenantModel]):
    pass


class RotatedKey(IssuedKey):
    tenant: str


class DeletedTopicOfTenant(BaseModel):
    topic: str
    log_id: str
    rows: int | None


class DeletedTable(BaseModel):
    table: str
    location: str
    files: int
    bytes: int


class DeletedKey(BaseModel):
    id: str
    owner: str


class DeletedBinding(BaseModel):
    principal: str
    role: str
    scope: str


class TenantDeletionModel(BaseModel):
    """What was deleted so far, also by earlier calls and before a restart; and what the stores still have."""

    tenant: str
    done: bool = Field(description="nothing is left; if false, call again")
    topics: list[DeletedTopicOfTenant]
    tables: list[DeletedTable]
    keys: list[DeletedKey]
    bindings: list[DeletedBinding]
    left: list[str]
