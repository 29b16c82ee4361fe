"""Who of a subscription's consumers gets a message. One class for each type of subscription, without any state of
messages: what is in flight is the subscription's to know."""

from __future__ import annotations

import bisect
import enum
import fnmatch
import zlib
from collections.abc import Sequence
from typing import Protocol

from frazil.broker.consumer import Consumer
from frazil.broker.entry import Entry

POINTS = 64
"""On the ring, for each consumer: enough that shares are about equal, few enough to place them at once."""


class Kind(enum.StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


class Choice(Protocol):
    def changed(self, consumers: Sequence[Consumer]) -> None:
        """These are connected now, in the order in which they first came."""
        ...

    def pick(self, entry: Entry, in_flight_max: int) -> Consumer | None:
        """Who gets it; None if nobody can take it now."""
        ...

    def wanted(self, entry: Entry) -> bool:
        """Whether anybody who is connected would ever take it."""
        ...


class One:
    """Exclusive and failover: the first takes all, the others stand by."""

    def __init__(self) -> None:
        self._first: Consumer | None = None

    def changed(self, consumers: Sequence[Consumer]) -> None:
        self._first = consumers[0] if consumers else None

    def pick(self, entry: Entry, in_flight_max: int) -> Consumer | None:  # noqa: ARG002 - the window is its own
        return self._first

    def wanted(self, entry: Entry) -> bool:  # noqa: ARG002
        return True


class InTurn:
    """Shared: one after the other. Who has more than a fair part of the window in hand is passed over."""

    def __init__(self) -> None:
        self._consumers: list[Consumer] = []
        self._next = 0

    def changed(self, consumers: Sequence[Consumer]) -> None:
        following = self._consumers[self._next :] if self._consumers else []
        self._consumers = list(consumers)
        self._next = next((self._consumers.index(one) for one in following if one in self._consumers), 0)

    def pick(self, entry: Entry, in_flight_max: int) -> Consumer | None:  # noqa: ARG002 - any message will do
        count = len(self._consumers)
        fair = -(-in_flight_max // count) if count else 0
        for step in range(count):
            at = (self._next + step) % count
            if len(self._consumers[at].in_flight) < fair:
                self._next = (at + 1) % count
                return self._consumers[at]
        return None

    def wanted(self, entry: Entry) -> bool:  # noqa: ARG002
        return True


class ByKey:
    """Key-shared: a key belongs to one consumer, by a ring of hashes, among those whose filters let it pass."""

    def __init__(self) -> None:
        self._consumers: list[Consumer] = []
        self._points: list[tuple[int, Consumer]] = []
        self._owners: dict[bytes, Consumer | None] = {}

    def changed(self, consumers: Sequence[Consumer]) -> None:
        self._consumers = list(consumers)
        self._owners.clear()
        self._points = sorted(
            ((_hash(f"{one.name}#{number}".encode()), one) for one in consumers for number in range(POINTS)),
            key=lambda point: (point[0], point[1].name),
        )

    def pick(self, entry: Entry, in_flight_max: int) -> Consumer | None:  # noqa: ARG002 - one message of a key at a time
        return self._owner(entry.key)

    def wanted(self, entry: Entry) -> bool:
        return self._owner(entry.key) is not None

    def _owner(self, key: bytes) -> Consumer | None:
        if key not in self._owners:
            if len(self._owners) >= KEYS_KNOWN_MAX:
                self._owners.clear()
            self._owners[key] = self._found(key)
        return self._owners[key]

    def _found(self, key: bytes) -> Consumer | None:
        text = key.decode(errors="replace")
        count = len(self._points)
        start = bisect.bisect_left(self._points, _hash(key), key=lambda point: point[0])
        for step in range(count):
            consumer = self._points[(start + step) % count][1]
            if not consumer.key_filters or any(fnmatch.fnmatchcase(text, one) for one in consumer.key_filters):
                return consumer
        return None


KEYS_KNOWN_MAX = 10_000


def _hash(data: bytes) -> int:
    return zlib.crc32(data)


def choice_of(kind: Kind) -> Choice:
    if kind is Kind.SHARED:
        return InTurn()
    return ByKey() if kind is Kind.KEY_SHARED else One()
