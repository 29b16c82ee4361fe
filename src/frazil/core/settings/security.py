"""Settings of security: TLS, tokens, the audit log, quotas."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from frazil.core.addresses import is_loopback
from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.settings.group import SettingsGroup

Positive = Annotated[int, Field(gt=0)]
ALGORITHMS = ("HS256", "RS256", "ES256")


class ClientCertificates(enum.StrEnum):
    """Whether clients present a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


class TlsSettings(SettingsGroup):
    """The certificate of a door. The files are read again when they change."""

    certificate: Path | None = Field(None, description="certificate chain of the server, PEM; unset: no TLS")
    key: Path | None = Field(None, description="its private key, PEM")
    client_ca: Path | None = Field(None, description="certificates that sign client certificates, PEM")
    client_certificates: ClientCertificates = Field(
        ClientCertificates.NONE, description="`none`, `optional` or `required`; the last two need `client_ca`"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> TlsSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given both or not at all")
        if self.client_certificates is not ClientCertificates.NONE and self.client_ca is None:
            raise ValueError(f"client_certificates: {self.client_certificates} needs client_ca")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        return self

    @property
    def is_on(self) -> bool:
        return self.certificate is not None


class JwtSettings(SettingsGroup):
    """A trusted issuer of tokens."""

    issuer: str = Field(min_length=1, description="required value of the claim `iss`")
    audience: str = Field(min_length=1, description="required value of the claim `aud`")
    algorithms: tuple[str, ...] = Field(description="accepted algorithms: HS256, RS256, ES256")
    secret_file: Path | None = Field(None, description="HS256: file with the shared secret, at least 32 bytes")
    jwks_file: Path | None = Field(None, description="RS256, ES256: file with the public keys (JWKS)")
    jwks_url: str | None = Field(None, description="RS256, ES256: https address of the public keys (JWKS)")
    clock_skew_s: int = Field(30, ge=0, le=600, description="tolerance for `exp` and `nbf`")
    subject_claim: str = Field("sub", min_length=1, description="claim with the caller's name")
    roles_claim: str | None = Field(None, description="claim with a list of role names; unset: bindings alone")

    @field_validator("algorithms")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or any(one not in ALGORITHMS for one in value):
            raise ValueError(f"must be one or more of {', '.join(ALGORITHMS)}")
        if "HS256" in value and len(value) > 1:
            raise ValueError("HS256 must stand alone: a public key must never be taken for a shared secret")
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> JwtSettings:
        given = [name for name in ("secret_file", "jwks_file", "jwks_url") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of secret_file, jwks_file and jwks_url must be given")
        if (self.algorithms == ("HS256",)) != (given == ["secret_file"]):
            raise ValueError("secret_file is for HS256, jwks_file and jwks_url are for RS256 and ES256")
        if self.jwks_url is not None and not _is_safe(self.jwks_url):
            raise ValueError("jwks_url: must be https, or http on loopback")
        return self


def _is_safe(url: str) -> bool:
    """Whether nobody on the way can change what is fetched there."""
    found = urlsplit(url)
    return is_loopback(found.hostname) if found.scheme == "http" else found.scheme == "https" and bool(found.hostname)


class AuditSettings(SettingsGroup):
    """The audit log: one JSON line for each decision."""

    enabled: bool = Field(True, description="whether it is written; only while security is on")
    path: Path | None = Field(None, description="its file; unset: `audit.log` in the data folder")
    bytes_max: int = Field(64 * 1024 * 1024, ge=64 * 1024, description="size at which a new file is begun")
    files_max: int = Field(10, ge=1, le=1_000, description="older files that are kept")
    reads: bool = Field(False, description="whether allowed reads and publishes are recorded too")
    topic: str | None = Field(None, description="topic that gets a copy of each record, such as `/default/audit`")

    @field_validator("topic")
    @classmethod
    def _is_a_topic(cls, value: str | None) -> str | None:
        try:
            return None if value is None else str(TopicName.parse(value))
        except InvalidInput as error:
            raise ValueError(error.message) from None


class QuotaSettings(SettingsGroup):
    """Limits of one principal; unset: no limit."""

    requests_per_second: Positive | None = None
    bytes_per_second: Positive | None = Field(None, description="rows received and sent")
    connections: Positive | None = Field(None, description="concurrent streams")
    topics: Positive | None = Field(None, description="topics that it has created")
    stored_bytes: Positive | None = Field(None, description="bytes in the logs of the topics that it has created")


class SecuritySettings(SettingsGroup):
    """Who may do what. Off, every caller may do everything, and the doors listen on loopback only."""

    enabled: bool = Field(False, description="whether callers need credentials and rights")
    insecure: bool = Field(False, description="allow doors on other addresses than loopback without security")
    tls: TlsSettings = Field(TlsSettings(), description="certificate of all doors that have none of their own")
    jwt: tuple[JwtSettings, ...] = Field((), description="trusted issuers of tokens")
    danube_token_s: int = Field(3_600, ge=60, le=86_400, description="lifetime of a token for a Danube client")
    audit: AuditSettings = AuditSettings()
    quota: QuotaSettings = Field(QuotaSettings(), description="of every principal that has none of its own")
    quotas: dict[str, QuotaSettings] = Field({}, description="of single principals, by name such as `key:ab12`")


class ClientSettings(SettingsGroup):
    """How this host's clients, movers and Spark tasks call a secured server."""

    ca: Path | None = Field(None, description="certificates that sign the server's, PEM; unset: the system's")
    certificate: Path | None = Field(None, description="client certificate, PEM")
    key: Path | None = Field(None, description="its private key, PEM")
    token: SecretStr | None = Field(None, description="API key or token")
    token_file: Path | None = Field(None, description="file with the API key or token; read again when it changes")

    @model_validator(mode="after")
    def _is_complete(self) -> ClientSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given both or not at all")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file: give one of them")
        return self
