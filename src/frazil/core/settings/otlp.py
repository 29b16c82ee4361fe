"""Settings of the doors for OTLP: addresses, and limits of requests."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from frazil.core.addresses import check_host_and_port, check_origin
from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.lake import MIB
from frazil.core.settings.security import TlsSettings

Positive = Annotated[int, Field(gt=0)]
REQUEST_BYTES_MAX = 256 * MIB


class OtlpSettings(SettingsGroup):
    """The doors for OTLP over gRPC and over HTTP; open while `telemetry.enabled` is set."""

    grpc_host: str = Field("127.0.0.1", description="address on which OTLP/gRPC listens")
    grpc_port: int = Field(
        4317, ge=0, le=65535, description="its port; 0 takes a free one, and so does the default if it is in use"
    )
    grpc_advertised: str | None = Field(
        None, description="host:port at which other brokers forward requests to it; default: where it listens"
    )
    http_host: str = Field("127.0.0.1", description="address on which OTLP/HTTP listens")
    http_port: int = Field(
        4318, ge=0, le=65535, description="its port; 0 takes a free one, and so does the default if it is in use"
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="origins whose pages may send, such as `https://shop.example`; each as browsers send it"
    )
    body_bytes_max: int = Field(8 * MIB, gt=0, le=REQUEST_BYTES_MAX, description="largest body over HTTP, as sent")
    request_bytes_max: int = Field(
        16 * MIB, gt=0, le=REQUEST_BYTES_MAX, description="largest request: Protobuf or JSON, decompressed"
    )
    items_max: int = Field(100_000, gt=0, lt=2**31, description="spans, log records or points of a request")
    item_bytes_max: Positive = Field(4 * MIB, description="largest span, log record or metric")
    held_bytes_max: Positive = Field(
        256 * MIB, description="requests that are not answered yet, of all senders; one sender may have half of it"
    )
    receive_ms_max: Positive = Field(10_000, description="a request that takes longer to arrive is refused")
    calls_max: Positive = Field(
        5_000, description="concurrent requests of both doors; one sender may have half of them"
    )
    tls: TlsSettings | None = Field(None, description="certificate of both; unset: `security.tls`")

    @field_validator("grpc_advertised")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else check_host_and_port(value, 4317)

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            check_origin(origin)
        return value

    @model_validator(mode="after")
    def _limits_fit(self) -> OtlpSettings:
        # a sender may have half of it, and a request is there twice while items that are too large are left out
        if 4 * max(self.request_bytes_max, self.body_bytes_max) > self.held_bytes_max:
            raise ValueError("held_bytes_max must be at least four times request_bytes_max and body_bytes_max")
        return self
