"""Settings of the broker: its door, and how messages are delivered."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, field_validator

from frazil.core.addresses import check_host_and_port
from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.security import TlsSettings

Positive = Annotated[int, Field(gt=0)]


class Poison(enum.StrEnum):
    """What happens to a message that was delivered too often."""

    BLOCK = "block"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


class Backoff(enum.StrEnum):
    """How the delay before a redelivery grows with each failed delivery."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class BrokerSettings(SettingsGroup):
    """The door for Danube clients, and how messages are delivered to subscriptions."""

    enabled: bool = Field(True, description="whether `frazil serve` serves Danube clients")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6650, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    advertised: str | None = Field(None, description="host:port at which clients reach it; default: where it listens")
    admin_host: str = Field("127.0.0.1", description="address on which Danube's admin service listens")
    admin_port: int = Field(
        50051, ge=0, le=65535, description="its port; 0 takes a free one, and so does the default if it is in use"
    )
    calls_max: Positive = Field(5_000, description="concurrent calls of each of the two services")
    streams_max: Positive = Field(10_000, description="concurrent streams of messages to consumers")
    max_unacked_messages: int = Field(10, gt=0, le=10_000, description="messages of a subscription in flight")
    max_unacked_bytes: Positive = Field(
        64 * 1024 * 1024, description="their bytes; one message of any size may always be in flight"
    )
    ack_timeout_ms: Positive = Field(30_000, description="an unanswered message is redelivered after this time")
    redeliveries_max: int = Field(5, ge=0, description="redeliveries of a message before `poison` applies")
    redelivery_delay_ms: Positive = Field(1_000, description="delay before the first redelivery")
    redelivery_delay_ms_max: Positive = Field(60_000, description="maximum delay")
    backoff: Backoff = Field(
        Backoff.EXPONENTIAL,
        description="`exponential`: the delay doubles with each redelivery; `fixed`: it is constant",
    )
    poison: Poison = Field(
        Poison.BLOCK,
        description="then `block` the subscription, `drop` the message, or publish it to a `dead_letter` topic",
    )
    progress_flush_ms: Positive = Field(200, description="acknowledgements are durable within this time")
    tls: TlsSettings | None = Field(None, description="certificate of its two ports; unset: `security.tls`")

    @field_validator("advertised")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else check_host_and_port(value, 6650)
