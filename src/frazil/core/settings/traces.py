"""Settings of traces: the receiver, and the share of messages traced."""

from __future__ import annotations

import re

from pydantic import Field, SecretStr, field_validator

from frazil.core.settings.group import SettingsGroup

_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[1-9]\d{0,4}")


class TracesSettings(SettingsGroup):
    """OpenTelemetry traces of a message's way: publish, commit, move, visible."""

    endpoint: str | None = Field(
        None, description="OTLP receiver over gRPC, as http://127.0.0.1:4317; unset: no traces"
    )
    sample_ratio: float = Field(0.01, ge=0, le=1, description="sampled share of messages without their own trace")
    headers: dict[str, SecretStr] = Field({}, description="headers sent with each export, such as an API key")

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not _ENDPOINT.fullmatch(value):
            raise ValueError("must be like http://127.0.0.1:4317 or https://collector.example:4317")
        return value
