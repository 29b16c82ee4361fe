"""Settings of the broker: its door, and how messages are delivered."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from frazil.core.addresses import check_host_and_port

Positive = Annotated[int, Field(gt=0)]


class Poison(enum.StrEnum):
    """What becomes of a message that was delivered too often."""

    BLOCK = "block"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


class Backoff(enum.StrEnum):
    """How the delay before a redelivery grows with each failed delivery."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class BrokerSettings(BaseModel):
    """The door for Danube clients, and how messages are delivered to subscriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(True, description="whether `frazil serve` opens the door for Danube clients")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6650, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    advertised: str | None = Field(None, description="host:port by which clients reach it; unset, where it listens")
    admin_host: str = Field("127.0.0.1", description="address on which Danube's admin service listens")
    admin_port: int = Field(
        50051, ge=0, le=65535, description="its port; 0 takes a free one, and so does an unset one that is taken"
    )
    calls_max: Positive = Field(5_000, description="calls that are answered at once, by each of the two services")
    streams_max: Positive = Field(10_000, description="streams of messages to consumers at once")
    max_unacked_messages: int = Field(10, gt=0, le=10_000, description="messages of a subscription in flight at once")
    max_unacked_bytes: Positive = Field(
        64 * 1024 * 1024, description="their bytes; one message may always be in flight, however large it is"
    )
    ack_timeout_ms: Positive = Field(30_000, description="a message without an answer for so long is delivered again")
    redeliveries_max: int = Field(5, ge=0, description="how often, before `poison` decides")
    redelivery_delay_ms: Positive = Field(1_000, description="delay before the first redelivery")
    redelivery_delay_ms_max: Positive = Field(60_000, description="the longest delay")
    backoff: Backoff = Field(
        Backoff.EXPONENTIAL, description="`exponential`: the delay doubles with each redelivery; `fixed`: it stays"
    )
    poison: Poison = Field(
        Poison.BLOCK, description="then: `block` the subscription, `drop` it, or publish it to a `dead_letter` topic"
    )
    progress_flush_ms: Positive = Field(200, description="acknowledgements are durable after so long at the latest")

    @field_validator("advertised")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else check_host_and_port(value, 6650)
