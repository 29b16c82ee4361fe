"""Settings of telemetry: tenants, and what applies to those that have no settings of their own."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.lake import MIB
from frazil.core.settings.otlp import OtlpSettings

Positive = Annotated[int, Field(gt=0)]
TABLES_MAX_DEFAULT = 1_000
"""Each table has its files, its metadata and its commits, and each topic its log."""
FRESHNESS_MS_MIN, FRESHNESS_MS_MAX = 100, 86_400_000
FILE_BYTES_MAX = 4096 * MIB


class TenantLimits(SettingsGroup):
    """Limits of one tenant, with all its principals and datasets; unset: no limit."""

    requests_per_second: Positive | None = None
    bytes_per_second: Positive | None = Field(None, description="requests and rows received, and rows sent")
    connections: Positive | None = Field(None, description="concurrent streams of its principals")
    stored_bytes: Positive | None = Field(None, description="bytes in the logs of its topics, on each broker")
    datasets: Positive | None = None
    tables: Positive | None = Field(None, description=f"tables of all its datasets; unset, {TABLES_MAX_DEFAULT:,}")


class TelemetrySettings(SettingsGroup):
    """Spans, log records and metrics of tenants."""

    enabled: bool = Field(False, description="whether tenants may send telemetry")
    create_tenants: bool = Field(
        True, description="whether the first request of a tenant creates it; only while security is off"
    )
    otlp: OtlpSettings = OtlpSettings()
    limits: TenantLimits = TenantLimits()
    freshness_ms: int = Field(
        10_000,
        ge=FRESHNESS_MS_MIN,
        le=FRESHNESS_MS_MAX,
        description="move when the oldest request has this age",
    )
    target_file_bytes: int = Field(
        128 * MIB, ge=MIB, le=FILE_BYTES_MAX, description="move when the waiting requests fill a file of this size"
    )
    own: bool = Field(
        False, description="whether the server stores its own log records, metrics and traces, in the tenant `_frazil`"
    )
    own_interval_ms: int = Field(15_000, ge=1_000, le=3_600_000, description="how often it stores its own metrics")

    @model_validator(mode="after")
    def _own_needs_tenants(self) -> Self:
        if self.own and not self.enabled:
            raise ValueError("own needs enabled: true")
        return self
