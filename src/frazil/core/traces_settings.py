"""Settings of traces: where they go, and of how many messages."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[1-9]\d{0,4}")


class TracesSettings(BaseModel):
    """OpenTelemetry traces of a message's way: publish, commit, move, visible."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str | None = Field(
        None, description="OTLP receiver over gRPC, as http://127.0.0.1:4317; unset, nothing is traced"
    )
    sample_ratio: float = Field(0.01, ge=0, le=1, description="share of messages without a trace of their own")
    headers: dict[str, SecretStr] = Field({}, description="sent with each export, such as a key of the receiver")

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not _ENDPOINT.fullmatch(value):
            raise ValueError("must be like http://127.0.0.1:4317 or https://collector.example:4317")
        return value
