"""Settings of the metadata store: which one, and how to reach it."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator, model_validator

from frazil.core.settings.group import SettingsGroup

_ENDPOINT = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[1-9]\d{0,4}")
_PREFIX = re.compile(r"/|(?:/[A-Za-z0-9_.-]{1,128}){1,8}")


class MetadataType(enum.StrEnum):
    SQLITE = "sqlite"
    ETCD = "etcd"


class MetadataSettings(SettingsGroup):
    """Where small facts are kept: progress of subscriptions. Unset, an SQLite file in the data folder."""

    type: MetadataType = Field(MetadataType.SQLITE, description="sqlite, or etcd for several hosts")
    endpoints: tuple[str, ...] = Field((), description="etcd: addresses of its members, as https://etcd-1.example:2379")
    prefix: str = Field("/frazil", description="etcd: prefix of all keys, unique for each Frazil cluster; / for none")
    username: str | None = Field(None, description="etcd: user, if it requires authentication")
    password: SecretStr | None = Field(None, description="etcd: password of the user")
    ca_path: Path | None = Field(None, description="etcd: trusted certificates; default: gRPC's public ones")
    cert_path: Path | None = Field(None, description="etcd: client certificate")
    key_path: Path | None = Field(None, description="etcd: private key of that certificate")
    timeout_ms: int = Field(10_000, ge=500, le=300_000, description="etcd: timeout of a call")

    @field_validator("endpoints", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        """Accept a single address, or several with commas as the environment gives them."""
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("endpoints")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_ENDPOINT.fullmatch(endpoint) for endpoint in value):
            raise ValueError("must be addresses like http://127.0.0.1:2379 or https://etcd-1.example:2379")
        if len({endpoint.partition(":")[0] for endpoint in value}) > 1:
            raise ValueError("must be all http or all https")
        return value

    @field_validator("prefix")
    @classmethod
    def _is_a_path(cls, value: str) -> str:
        if not _PREFIX.fullmatch(value):
            raise ValueError("must be like /frazil or /teams/orders, and not end with /; or / alone")
        return value

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> MetadataSettings:
        if self.type is MetadataType.ETCD and not self.endpoints:
            raise ValueError("endpoints are needed for metadata of type etcd")
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password are given both or not at all")
        if (self.cert_path is None) != (self.key_path is None):
            raise ValueError("cert_path and key_path are given both or not at all")
        if self.endpoints and not self.is_encrypted and (self.ca_path or self.cert_path):
            raise ValueError("certificates are for endpoints that begin with https://")
        return self

    @property
    def root(self) -> str:
        """The prefix of each key. Keys begin with /, so it is empty for the prefix /."""
        return "" if self.prefix == "/" else self.prefix

    @property
    def is_encrypted(self) -> bool:
        return self.endpoints[:1] != () and self.endpoints[0].startswith("https://")
