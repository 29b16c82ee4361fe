"""Messages as the state machine holds them, and its decisions about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from frazil.broker.delivery.assignment import Member


class Item(Protocol):
    """A message that was read, with only the fields that the state machine uses."""

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes: ...

    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class InFlight:
    """A message that was delivered but not answered."""

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
    """Publish this poison message as a dead letter, then call `set_aside` or `not_set_aside`."""

    item: Item
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """This poison message is dropped."""

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
