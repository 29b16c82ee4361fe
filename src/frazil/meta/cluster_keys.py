"""Keys of a cluster of brokers in the metadata store. Owners are in the records of topics: `meta.topic_records`.

/cluster/brokers/{id}                  {"session", "process", "taken"}: the process that is the broker now; leased
/cluster/doors/{id}                    {"addresses", "stopping"}: where it listens; leased
/cluster/loads/{id}                    {"topics", "rest"}: the traffic of its topics; leased
/cluster/leader                        {"broker", "session"}: who decides where topics go; leased
/cluster/members/{id}                  {"state", "parallel_max"}: a broker that is drained
/cluster/moves/{namespace}/{topic}     {"to", "accept_loss", "by", "problem"}: a requested move
/cluster/serving/{namespace}/{topic}   {"broker", "session", "epoch", "log_id", "object_epoch"}: who has opened it
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self, TypeVar

from frazil.core.cluster import BrokerState
from frazil.core.errors import InvalidName
from frazil.core.names import TopicName
from frazil.core.process.identity import ProcessIdentity
from frazil.meta.session import decoded, encoded, process_of

CLUSTER = "/cluster/"
BROKERS, DOORS, LOADS, MEMBERS, MOVES, SERVING = (
    f"/cluster/{what}/" for what in ("brokers", "doors", "loads", "members", "moves", "serving")
)
LEADER = "/cluster/leader"

_log = logging.getLogger("frazil.cluster")
_Record = TypeVar("_Record")


def topic_key(prefix: str, topic: TopicName) -> str:
    return f"{prefix}{topic.namespace}/{topic.topic}"


def topic_of(prefix: str, key: str) -> TopicName | None:
    """Return the topic of a key; None if it names none."""
    try:
        return TopicName.parse("/" + key.removeprefix(prefix))
    except InvalidName:
        return None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    session: str
    process: ProcessIdentity | None
    revision: int

    @classmethod
    def decode(cls, value: bytes, revision: int) -> Self:
        return cls(str(decoded(value).get("session")), process_of(value), revision)


@dataclass(frozen=True, slots=True)
class DoorsRecord:
    addresses: Mapping[str, str]
    stopping: bool = False
    """It gives its topics away, and ends."""

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        return cls({str(door): str(at) for door, at in read["addresses"].items()}, bool(read["stopping"]))


@dataclass(frozen=True, slots=True)
class LoadsRecord:
    """What topics add to the load of their number; see `frazil.node.ownership.moves.load`."""

    topics: Mapping[str, float] = field(default_factory=dict)
    """Those with the most traffic, by name."""
    rest: float = 0.0
    """The sum of all others."""

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        return cls({str(topic): float(load) for topic, load in read["topics"].items()}, float(read["rest"]))


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    broker: str
    session: str

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        return cls(str(read["broker"]), str(read["session"]))


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A broker without one is active."""

    state: BrokerState
    parallel_max: int

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        return cls(BrokerState(read["state"]), int(read["parallel_max"]))


@dataclass(frozen=True, slots=True)
class MoveRecord:
    to: str
    by: str
    """The broker that asked for it."""
    accept_loss: bool = False
    problem: str | None = None
    """Why it failed. Who asked for it withdraws it, or asks again."""

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        problem = read["problem"]
        return cls(
            str(read["to"]), str(read["by"]), bool(read["accept_loss"]), None if problem is None else str(problem)
        )


@dataclass(frozen=True, slots=True)
class ServingRecord:
    broker: str
    session: str
    epoch: int
    log_id: str = ""
    object_epoch: int = 0
    """The epoch in the object store in which the log was opened; 0 if it is not known."""

    def encode(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def decode(cls, read: Mapping[str, Any]) -> Self:
        """Decode a record; one of an earlier version has no log and no epoch in the object store."""
        log_id, object_epoch = str(read.get("log_id", "")), int(read.get("object_epoch", 0))
        return cls(str(read["broker"]), str(read["session"]), int(read["epoch"]), log_id, object_epoch)


def read_record(key: str, value: bytes | None, decode: Callable[[Mapping[str, Any]], _Record]) -> _Record | None:
    """Decode a record; one that is damaged, or of a newer version, is reported and treated as missing."""
    if value is None:
        return None
    try:
        return decode(decoded(value))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _log.error("%s cannot be read, and is ignored: %s %s", key, type(error).__name__, error)
        return None
