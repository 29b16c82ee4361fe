"""The record of a topic in the metadata store: its logs, and the data folder that owns them.

    /topics/{namespace}/{topic}    {"topic", "owner", "epoch", "partitions", "logs": [{"topic", "log_id", …}, …]}

In a cluster of brokers each log has its own "owner" and "epoch": partitions of one topic may have different owners.
A topic and all its partitions share one record, and names that differ only in case share one key. So one put-if-absent
decides who creates a topic, and excludes its other forms: with and without partitions, or with a name in another case.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from frazil.core.errors import FrazilError, InvalidInput
from frazil.core.names import TopicName

TOPIC_RECORDS = "/topics/"
CREATOR_RECORDS = "/security/creators/"
FIRST_EPOCH = 1


def topic_record_key(name: TopicName) -> str:
    """Return the key of a topic, or of the base topic of a partition."""
    base = name.partition_of()[0]
    return f"{TOPIC_RECORDS}{base.namespace.lower()}/{base.topic.lower()}"


def creator_key(name: TopicName) -> str:
    """Return the key of the record that names the creator of a topic, deleted with it: shared like that of the topic.

    Records: `frazil.node.access.topic_quotas.creators`.
    """
    return CREATOR_RECORDS + topic_record_key(name).removeprefix(TOPIC_RECORDS)


class UnreadableRecord(FrazilError):
    """A topic record that is damaged, or that a newer version wrote."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """One log: that of a topic or of a partition."""

    log_id: str | None
    """None for a non-reliable topic, which has no log."""
    created_us: int
    schema: str | None = None
    """In the form of `packed_schema`; None for a message topic."""
    retention: Mapping[str, Any] | None = None
    """The topic's own retention; None if that of the settings applies."""
    owner: str | None = None
    """In a cluster, the id of the broker that owns the log; None if the record's owner is its owner."""
    epoch: int | None = None
    """In a cluster, incremented by each new owner of the log; None if the record's epoch is its epoch."""
    ack: str | None = None
    """The ack level: `memory` or `object`; None for `disk`."""


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    topic: TopicName
    """The name without a partition number, spelled as at its creation."""
    logs: Mapping[TopicName, LogIdentity]
    owner: str | None = None
    """The id of the data folder that has the logs; None if the store is a file of that folder."""
    epoch: int = FIRST_EPOCH
    """Incremented by each new owner."""

    @property
    def partitions(self) -> int:
        """The number of partitions; 0 for a topic without partitions."""
        return 0 if self.topic in self.logs else len(self.logs)

    def owner_of(self, name: TopicName) -> str | None:
        """Return the owner of one of the logs."""
        return self.logs[name].owner or self.owner

    def epoch_of(self, name: TopicName) -> int:
        """Return the epoch of one of the logs."""
        return self.logs[name].epoch or self.epoch

    def owned_by(self, name: TopicName, owner: str, epoch: int) -> TopicIdentity:
        """Return the record with another owner of one of the logs."""
        return replace(self, logs={**self.logs, name: replace(self.logs[name], owner=owner, epoch=epoch)})

    def encode(self) -> bytes:
        logs = [_encoded(name, one) for name, one in sorted(self.logs.items())]
        content = {
            "topic": str(self.topic),
            "owner": self.owner,
            "epoch": self.epoch,
            "partitions": self.partitions,
            "logs": logs,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> TopicIdentity:
        try:
            read = json.loads(value)
            logs = {TopicName.parse(one.pop("topic")): LogIdentity(**one) for one in read["logs"]}
            return cls(TopicName.parse(read["topic"]), logs, read["owner"], read["epoch"])
        except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as error:
            raise UnreadableRecord(f"the metadata store holds a topic record that can't be read: {error}") from None


def _encoded(name: TopicName, log: LogIdentity) -> dict[str, Any]:
    stored: dict[str, Any] = {
        "topic": str(name),
        "log_id": log.log_id,
        "created_us": log.created_us,
        "schema": log.schema,
        "retention": None if log.retention is None else dict(log.retention),
    }
    own = {"owner": log.owner, "epoch": log.epoch, "ack": log.ack}
    return stored | {key: value for key, value in own.items() if value is not None}


def packed_schema(schema: pa.Schema | None) -> str | None:
    """Serialize a schema in Arrow's form, compressed, as base64: a large one fits into a value."""
    return None if schema is None else base64.b64encode(zlib.compress(schema.serialize())).decode()


def unpacked_schema(text: str | None) -> pa.Schema | None:
    """Reverse `packed_schema`."""
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(text))))
