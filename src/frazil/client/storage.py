"""The topics of a server, as its clients have them: the face of `frazil.Storage`, over the network.

with frazil.connect("grpc://127.0.0.1:6660") as storage:
    orders = storage.topic("/default/orders")
    offset = orders.publish("tea")
"""

from __future__ import annotations

import threading
import uuid
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from frazil.client.connection import Connection
from frazil.client.identity import ProducerIdentity
from frazil.client.topic import RemoteTopic
from frazil.core.clock import Clock, SystemClock
from frazil.core.columns import schema_as_text
from frazil.core.errors import SchemaMismatch
from frazil.core.rows import check_own_schema
from frazil.core.sequences import check_producer
from frazil.core.settings import MIB, RetentionSettings


def connect(
    address: str,
    *,
    producer: str | None = None,
    buffer_bytes_max: int = 64 * MIB,
    give_up_ms: int = 30_000,
) -> RemoteStorage:
    """The topics of `frazil serve`, by the address of its Flight door.

    A `producer` of a name of its own goes on with its numbers when it comes again, and whoever had the name before is
    refused from then on; without one it is a new producer each time. `buffer_bytes_max` bounds what one topic's callers
    may have on its way. A server that is away is waited for, for `give_up_ms`.
    """
    if producer is not None:
        check_producer(producer)
    clock = SystemClock()
    connection = Connection(address, give_up_ms, clock)
    storage = RemoteStorage(connection, producer, buffer_bytes_max, clock)
    try:
        connection.act("topics")
    except BaseException:
        storage.close()
        raise
    return storage


class RemoteStorage:
    """Made by `frazil.connect`; used from as many threads as you like."""

    def __init__(self, connection: Connection, producer: str | None, buffer_bytes_max: int, clock: Clock) -> None:
        self._connection = connection
        self._producer = producer or f"client-{uuid.uuid4()}"
        self._producer_is_shared = producer is not None
        self._buffer_bytes_max = buffer_bytes_max
        self._clock = clock
        self._guard = threading.Lock()
        self._topics: dict[str, tuple[str, RemoteTopic]] = {}

    @property
    def producer(self) -> str:
        """The name under which it publishes."""
        return self._producer

    def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> RemoteTopic:
        """The topic of that name, made if it is not there. With `schema` it is a typed topic of these columns."""
        return self._known(self._connection.act_until("topic", topic=name, schema=_told(schema), create=create))

    def create_topic(
        self, name: str, *, schema: pa.Schema | None = None, retention: RetentionSettings | None = None
    ) -> RemoteTopic:
        """A new topic, or `TopicExists`."""
        kept = None if retention is None else retention.model_dump()
        return self._known(self._connection.act("create_topic", topic=name, schema=_told(schema), retention=kept))

    def create_partitions(
        self, name: str, count: int, *, retention: RetentionSettings | None = None
    ) -> list[RemoteTopic]:
        """`<name>-part-0` up to `<name>-part-(count-1)`: all of them, or none. `TopicExists` if it is there."""
        kept = None if retention is None else retention.model_dump()
        made = self._connection.act("create_partitions", topic=name, partitions=count, retention=kept)
        return [self._known(told) for told in made]

    def change_schema(self, name: str, schema: pa.Schema) -> RemoteTopic:
        """Give a typed topic new nullable columns or wider types; rows stored before are read in the new form."""
        check_own_schema(schema)
        return self._known(self._connection.act_until("change_schema", topic=name, schema=_told(schema)))

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        """A retention of the topic's own; None goes back to the settings'."""
        kept = None if retention is None else retention.model_dump()
        self._connection.act_until("set_retention", topic=name, retention=kept)

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Remove a topic and all its rows. A topic made again under the name has nothing to do with it.

        `TopicInUse` if it has subscriptions or producers of the broker's, unless `force` says that they go with it.
        """
        self._connection.act("delete_topic", topic=name, force=force)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return list(self._connection.act_until("topics"))

    def close(self) -> None:
        """Wait for what is on its way, and close the connection. In a forked child: nothing, it is the parent's."""
        if not self._connection.process.is_here:
            return
        with self._guard:
            topics = [topic for _, topic in self._topics.values()]
        for topic in topics:
            topic.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _known(self, told: dict[str, Any]) -> RemoteTopic:
        """One for each log: a topic made again under the same name is another, and so is one that was renumbered."""
        with self._guard:
            log_id, topic = self._topics.get(told["topic"], ("", None))
            if topic is None or log_id != told["log_id"]:
                identity = ProducerIdentity(self._producer, shared=self._producer_is_shared)
                if topic is not None and log_id in told.get("former", ()):
                    identity = topic.identity.of_renumbered()
                topic = RemoteTopic(self._connection, told, identity, self._buffer_bytes_max, self._clock)
                self._topics[told["topic"]] = (told["log_id"], topic)
            else:
                topic.learn(told)
        return topic


def _told(schema: pa.Schema | None) -> str | None:
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise SchemaMismatch(f"a schema is a pyarrow.Schema, not {type(schema).__name__}")
    return schema_as_text(schema)
