"""Settings of the object tier: where segments of the log are uploaded, and how."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.lake import MIB, ObjectStoreSettings, Positive

_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}(?:/[A-Za-z0-9_.-]{1,128}){0,7}", re.ASCII)


class ObjectsSettings(SettingsGroup):
    """The object tier: sealed segments of the log are uploaded to an object store."""

    enabled: bool = Field(False, description="whether segments are uploaded")
    store: ObjectStoreSettings | None = Field(None, description="the store; unset, that of `object_store`")
    prefix: str = Field("wal", description="path below the store's own prefix, unique for each Frazil cluster")
    open_interval_ms: Positive | None = Field(
        None, description="also upload the rows of an open segment at this interval; unset, sealed segments only"
    )
    object_bytes_max: int = Field(16 * MIB, ge=MIB, le=1024 * MIB, description="a larger segment is several objects")
    parallel_max: int = Field(4, ge=1, le=64, description="concurrent uploads")
    bytes_per_second_max: Positive | None = Field(None, description="bandwidth of all uploads; unset, no limit")
    timeout_ms: int = Field(20_000, ge=500, le=300_000, description="timeout of a request")
    gather_ms: int = Field(5, ge=0, le=10_000, description="ack level `object`: how long a group gathers messages")
    gather_bytes_max: int = Field(
        8 * MIB, ge=64 * 1024, le=256 * MIB, description="ack level `object`: a group of this size is uploaded at once"
    )
    ack_timeout_ms: int = Field(
        30_000,
        ge=100,
        le=3_600_000,
        description="ack level `object`: while the store is away, callers get an error after this time",
    )
    age_ms: Positive | None = Field(None, description="objects of this age are removed once the table has their rows")
    bytes: Positive | None = Field(None, description="oldest objects of a topic beyond this size are removed likewise")

    @field_validator("prefix")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value) or any(part in (".", "..") for part in value.split("/")):
            raise ValueError("must be like wal or frazil/wal: names with letters, digits, _ . and -, joined by /")
        return value

    @model_validator(mode="after")
    def _limits_are_for_objects(self) -> ObjectsSettings:
        if not self.enabled and self.open_interval_ms is not None:
            raise ValueError("open_interval_ms has no effect without enabled: true")
        return self
