"""The interface of a log to the object store that its acknowledgements wait for, with ack level `object`.

The log writes its own file first, unsynced, and then hands over the same frames. The store decides who owns the log: a
put is refused once another process has taken the log over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from typing_extensions import Buffer

from frazil.core.disk import Disk
from frazil.core.names import TopicName
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.format.frames import SegmentHead
from frazil.log.write.segment import Segment

CLOSE_SECONDS_MAX = 30.0


class FrameGroup(NamedTuple):
    """Frames of a log's file that become one object: the rows from `first` up to `end`."""

    first: int
    end: int
    head: SegmentHead
    producers: bytes
    """The state of the producers at `first`, as in the schema frame of a segment."""
    frames: Sequence[Buffer]
    first_time_us: int
    last_time_us: int


class GroupStore(Protocol):
    """The objects of one log, which this process owns. Calls block, and may come from any thread."""

    epoch: int
    """The epoch in which this process stores objects."""

    @property
    def end(self) -> int:
        """Rows below are stored."""
        ...

    @property
    def refused_at(self) -> int | None:
        """Return where the objects of this epoch end for good, once another process has taken the log over."""
        ...

    def first_of_others(self, start: int, epoch: int) -> int | None:
        """Return where the rows begin, from `start` on, that were stored in later epochs than the given one."""
        ...

    def pack(self, group: FrameGroup) -> bytes:
        """Return the bytes of the object. Pack a group once: a repeated put needs the same bytes."""
        ...

    def put(self, group: FrameGroup, content: bytes) -> None:
        """Store an object durably. Raises `ObjectStoreUnavailable`: then the same call is to be repeated. Raises
        `LogFenced`, or another error, if it will never be stored."""
        ...

    def look(self) -> None:
        """Raise `LogFenced` if another process has taken the log over, and nothing was put since."""
        ...

    def tail(self, disk: Disk, segments: Sequence[Segment], end: int) -> Iterator[FrameGroup]:
        """Yield the rows of the files that are not stored yet, up to `end`.

        Raises `CorruptLog`; after `TryLater` the next call goes on where it was.
        """
        ...

    def continuation(self) -> AdoptedLog:
        """Return where a log without its files goes on: behind its objects."""
        ...


class GroupStores(Protocol):
    """The object store of all logs of a storage with ack level `object`."""

    gather_ms: int
    """How long a group gathers rows before it is stored."""
    gather_bytes_max: int
    """A group of this size is stored at once."""
    in_flight_max: int
    """Groups of one log that travel at the same time."""
    ack_timeout_ms: int
    """Callers learn that the outcome is unknown after this time."""
    close_seconds_max: float
    """How long a log that is closed waits for the store. One that has waited in vain sets it to 0 for the others, until
    the store answers."""

    def take_over(self, log_id: str, name: TopicName, first: int = 0) -> GroupStore:
        """Become the owner of a log, once in this process; a log without objects begins at `first`.

        Raises `ObjectStoreUnavailable`, or another error.
        """
        ...

    def taken(self, log_id: str) -> GroupStore | None:
        """Return the store of a log that this process has taken over."""
        ...

    def release(self, log_id: str) -> None:
        """Forget a log that is closed: the next opening takes it over again."""
        ...

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job, which handles its own errors, in one of the threads for requests."""
        ...

    def close(self) -> None: ...


GroupsOf = Callable[[], "GroupStores | None"]


def no_groups() -> None:
    """No topic has ack level `object`."""
