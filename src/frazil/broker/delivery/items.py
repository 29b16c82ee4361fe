"""Messages as the state machine holds them, and what it decides about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from frazil.broker.delivery.assignment import Member


class Item(Protocol):
    """A message that was read. The machine looks at nothing but these."""

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes: ...

    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message that was delivered and has no answer yet."""

    item: Item
    member: Member
    deadline_us: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send this message to this consumer. `attempt` counts from 1."""

    consumer: str
    item: Item
    attempt: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Publish this poison message as a dead letter, then say `set_aside` or `not_set_aside`."""

    item: Item
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """This poison message is given up."""

    offset: int
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing newer is delivered until this poison message is acknowledged."""

    offset: int
    attempts: int
    reason: str


Decision = Deliver | SetAside | Dropped | Blocked
