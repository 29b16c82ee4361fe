"""The objects of one log that its owner knows, in offset order. Readers take a snapshot, which never changes."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable

from frazil.core.offsets import OffsetRange
from frazil.core.stored_objects import StoredObject


class LogObjects:
    """Thread-safe. Within an epoch the objects are contiguous: each begins where the one before it ends. Between epochs
    rows may be missing: those of an accepted loss, or from while the log was not uploaded.

    Adding one costs the same however many there are: a log of ack level `object` gets hundreds each second.
    """

    def __init__(self, log_id: str, epoch: int, known: Iterable[StoredObject] = ()) -> None:
        self.log_id = log_id
        self.epoch = epoch
        self._guard = threading.Lock()
        self._held = list(known)
        self._gone = 0
        """How many at the beginning of the list were removed. They leave it together."""
        self._snapshot: tuple[StoredObject, ...] | None = None
        self.size_bytes = sum(one.size_bytes for one in self._held)

    @property
    def count(self) -> int:
        with self._guard:
            return len(self._held) - self._gone

    def all(self) -> tuple[StoredObject, ...]:
        """Return all of them. It copies the list, unless none was added or removed since: `count`, `start`, `end` and
        `last` are cheaper."""
        with self._guard:
            if self._snapshot is None:
                self._snapshot = tuple(self._held[self._gone :])
            return self._snapshot

    @property
    def last(self) -> StoredObject | None:
        with self._guard:
            return self._last()

    @property
    def start(self) -> int:
        """Return the first offset that objects hold; `end` if they hold none."""
        with self._guard:
            return self._held[self._gone].first if self._last() is not None else 0

    @property
    def end(self) -> int:
        """Return the end of the uploaded rows; 0 if there are none."""
        last = self.last
        return 0 if last is None else last.end

    def at(self, offset: int) -> StoredObject | None:
        """Return the object that holds an offset."""
        with self._guard:
            place = self._place(offset)
            return None if place is None else self._held[place]

    def covering(self, wanted: OffsetRange) -> tuple[StoredObject, ...]:
        """Return the objects that hold a range, from its first offset on as far as they reach; none without that."""
        with self._guard:
            first = self._place(wanted.start)
            if first is None:
                return ()
            held = self._held[first : bisect.bisect_left(self._held, wanted.end, lo=first, key=_first)]
        gap = next((at for at in range(1, len(held)) if held[at - 1].end != held[at].first), len(held))
        return tuple(held[:gap])

    def add(self, one: StoredObject) -> None:
        with self._guard:
            last = self._last()
            assert last is None or follows(last, one), (last, one)
            self._held.append(one)
            self._snapshot = None
            self.size_bytes += one.size_bytes

    def remove_below(self, offset: int) -> tuple[StoredObject, ...]:
        """Forget the objects that end at or below an offset, and return them."""
        with self._guard:
            behind = bisect.bisect_right(self._held, offset, lo=self._gone, key=lambda one: one.end)
            gone = tuple(self._held[self._gone : behind])
            self._gone, self._snapshot = behind, None
            self.size_bytes -= sum(one.size_bytes for one in gone)
            if self._gone > len(self._held) // 2:
                del self._held[: self._gone]
                self._gone = 0
            return gone

    def _last(self) -> StoredObject | None:
        return self._held[-1] if len(self._held) > self._gone else None

    def _place(self, offset: int) -> int | None:
        """Return the place of the object that holds an offset."""
        place = bisect.bisect_right(self._held, offset, lo=self._gone, key=_first) - 1
        return place if place >= self._gone and offset < self._held[place].end else None


def _first(one: StoredObject) -> int:
    return one.first


def follows(one: StoredObject, following: StoredObject) -> bool:
    """Whether an object can come directly after another."""
    return one.end == following.first or (one.end < following.first and one.epoch < following.epoch)
