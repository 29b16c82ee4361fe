"""Which consumer gets a message: one class per type of subscription.

An assignment knows the consumers and how many messages each has in flight. It knows nothing of messages.
"""

from __future__ import annotations

import bisect
import enum
import fnmatch
import re
import zlib
from typing import Protocol

RING_POINTS = 64
"""Points on the hash ring per consumer: enough for about equal shares."""
OWNERS_CACHED_MAX = 10_000


class Kind(enum.StrEnum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    FAILOVER = "failover"
    KEY_SHARED = "key-shared"


class Member:
    """A consumer as the state machine sees it: known by name until it is removed, connected at times."""

    __slots__ = ("_filters", "connected", "in_flight", "key_filters", "name")

    def __init__(self, name: str, key_filters: tuple[str, ...] = ()) -> None:
        self.name = name
        self.connected = False
        self.in_flight: set[int] = set()
        self.set_filters(key_filters)

    def set_filters(self, key_filters: tuple[str, ...]) -> None:
        self.key_filters = key_filters
        self._filters = [re.compile(fnmatch.translate(one)) for one in key_filters]

    def accepts(self, key: bytes) -> bool:
        if not self._filters:
            return True
        text = key.decode(errors="replace")
        return any(one.match(text) for one in self._filters)


class Assignment(Protocol):
    def connected(self, member: Member) -> None: ...

    def disconnected(self, member: Member) -> None: ...

    def pick(self, key: bytes, window_max: int) -> Member | None:
        """The connected consumer that gets a message of this key; None if none can take it now."""
        ...


class ActiveConsumer:
    """Exclusive and failover: the active consumer gets everything until it disconnects. The others stand by in the
    order in which they connected."""

    def __init__(self) -> None:
        self._connected: dict[str, Member] = {}

    def connected(self, member: Member) -> None:
        self._connected[member.name] = member

    def disconnected(self, member: Member) -> None:
        self._connected.pop(member.name, None)

    def pick(self, key: bytes, window_max: int) -> Member | None:  # noqa: ARG002 - the window is the subscription's
        return next(iter(self._connected.values()), None)


class RoundRobin:
    """Shared: consumers take turns. A consumer with more than its fair share of the window in flight is skipped."""

    def __init__(self) -> None:
        self._connected: list[Member] = []
        self._next = 0

    def connected(self, member: Member) -> None:
        self._connected.append(member)

    def disconnected(self, member: Member) -> None:
        at = self._connected.index(member)
        del self._connected[at]
        if at < self._next:
            self._next -= 1
        if self._next >= len(self._connected):
            self._next = 0

    def pick(self, key: bytes, window_max: int) -> Member | None:  # noqa: ARG002 - any message will do
        count = len(self._connected)
        share = -(-window_max // count) if count else 0
        for step in range(count):
            at = (self._next + step) % count
            if len(self._connected[at].in_flight) < share:
                self._next = (at + 1) % count
                return self._connected[at]
        return None


class HashRing:
    """Key-shared: a key belongs to one consumer, by consistent hashing, among those whose filters accept it."""

    def __init__(self) -> None:
        self._points: list[tuple[int, str]] = []
        self._members: dict[str, Member] = {}
        self._owners: dict[bytes, Member | None] = {}

    def connected(self, member: Member) -> None:
        self._members[member.name] = member
        for point in _points_of(member.name):
            bisect.insort(self._points, point)
        self._owners.clear()

    def disconnected(self, member: Member) -> None:
        if self._members.pop(member.name, None) is not None:
            for point in _points_of(member.name):
                del self._points[bisect.bisect_left(self._points, point)]
        self._owners.clear()

    def pick(self, key: bytes, window_max: int) -> Member | None:  # noqa: ARG002 - one message of a key at a time
        if key not in self._owners:
            if len(self._owners) >= OWNERS_CACHED_MAX:
                self._owners.clear()
            self._owners[key] = self._owner(key)
        return self._owners[key]

    def _owner(self, key: bytes) -> Member | None:
        rejected: set[str] = set()
        count = len(self._points)
        start = bisect.bisect_left(self._points, (zlib.crc32(key), ""))
        for step in range(count):
            name = self._points[(start + step) % count][1]
            if name in rejected:
                continue
            if self._members[name].accepts(key):
                return self._members[name]
            rejected.add(name)
            if len(rejected) == len(self._members):
                return None
        return None


def _points_of(name: str) -> list[tuple[int, str]]:
    return [(zlib.crc32(f"{name}#{number}".encode()), name) for number in range(RING_POINTS)]


def assignment_of(kind: Kind) -> Assignment:
    if kind is Kind.SHARED:
        return RoundRobin()
    return HashRing() if kind is Kind.KEY_SHARED else ActiveConsumer()
