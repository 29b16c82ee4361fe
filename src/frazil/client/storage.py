"""The topics of a server: the interface of `frazil.Storage`, over the network.

with frazil.connect("grpc://127.0.0.1:6660") as storage:
    orders = storage.topic("/default/orders")
    offset = orders.publish("tea")
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from frazil.client.connection import Connection
from frazil.client.identity import ProducerIdentity
from frazil.client.topic import RemoteTopic
from frazil.core.clock import Clock, SystemClock
from frazil.core.credentials import ClientCredentials, checked_token, credentials_of, pem_file
from frazil.core.errors import InvalidInput, PartitionsElsewhere, SchemaMismatch
from frazil.core.names import TopicName
from frazil.core.partitions import partitions_of
from frazil.core.rows import check_own_schema
from frazil.core.rows.columns import schema_as_text
from frazil.core.sequences import check_producer
from frazil.core.settings import MIB, RetentionSettings
from frazil.core.settings.security import ClientSettings


def connect(
    address: str | Sequence[str],
    *,
    token: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    client: ClientSettings | ClientCredentials | None = None,
    producer: str | None = None,
    buffer_bytes_max: int = 64 * MIB,
    give_up_ms: int = 30_000,
) -> RemoteStorage:
    """Connect to the Flight address of `frazil serve`, `grpc://host:port` or `grpc+tls://host:port`.

    In a cluster name any brokers, as a list or with commas between: the first that answers names the others. Calls go
    to the owner of their topic, also after it has moved, and credentials only to brokers.

    A secured server wants an API key or another `token`, or a client `certificate` with its `key`. `ca` is the file
    with the certificates that sign the server's; unset, the system's are trusted. `client` gives all as settings.

    A named `producer` continues its sequence when it reconnects, and fences the previous client of that name; without a
    name it is a new producer each time. `buffer_bytes_max` limits the unanswered rows of one topic. An unavailable
    server is retried for `give_up_ms`.
    """
    if producer is not None:
        check_producer(producer)
    clock = SystemClock()
    connection = Connection(address, give_up_ms, clock, _credentials(token, ca, certificate, key, client))
    storage = RemoteStorage(connection, producer, buffer_bytes_max, clock)
    try:
        connection.begin()
    except BaseException:
        storage.close()
        raise
    return storage


def _credentials(
    token: str | None,
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    client: ClientSettings | ClientCredentials | None,
) -> ClientCredentials:
    given = {"token": token, "ca": ca, "certificate": certificate, "key": key}
    named = [name for name, value in given.items() if value is not None]
    if client is not None:
        if named:
            raise InvalidInput(f"{named[0]}: give either it or client, not both", field=named[0])
        return client if isinstance(client, ClientCredentials) else credentials_of(client)
    if (certificate is None) != (key is None):
        raise InvalidInput("certificate and key are given both or not at all", field="certificate")
    return ClientCredentials(
        token=None if token is None else checked_token(token, "token"),
        ca=pem_file(None if ca is None else Path(ca), "ca"),
        certificate=pem_file(None if certificate is None else Path(certificate), "certificate"),
        key=pem_file(None if key is None else Path(key), "key"),
    )


class RemoteStorage:
    """Created by `frazil.connect`; thread-safe."""

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
        """The producer name under which it publishes."""
        return self._producer

    def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> RemoteTopic:
        """Return the topic, creating it if it does not exist. With `schema` it is a typed topic of these columns."""
        return self._known(self._connection.act_until("topic", topic=name, schema=_encoded(schema), create=create))

    def create_topic(
        self,
        name: str,
        *,
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
    ) -> RemoteTopic:
        """Create a topic, or raise `TopicExists`. `ack` is its ack level, by default that of the server's settings."""
        new = {"topic": name, "schema": _encoded(schema), **_given(retention, ack)}
        return self._known(self._connection.act("create_topic", **new))

    def create_partitions(
        self, name: str, count: int, *, retention: RetentionSettings | None = None, ack: str | None = None
    ) -> list[RemoteTopic]:
        """Create `<name>-part-0` up to `<name>-part-(count-1)`: all or none. Raises `TopicExists`
        if the topic exists.
        """
        made = self._connection.act("create_partitions", topic=name, partitions=count, **_given(retention, ack))
        return [self._known(answer) for answer in made]

    def change_schema(self, name: str, schema: pa.Schema) -> RemoteTopic:
        """Give a typed topic new nullable columns or wider types; older rows are read in the new form."""
        check_own_schema(schema)
        return self._known(self._connection.act_until("change_schema", topic=name, schema=_encoded(schema)))

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        """Set the topic's own retention; None restores the default of the settings."""
        kept = None if retention is None else retention.model_dump()
        self._connection.act_until("set_retention", topic=name, retention=kept)

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic and all its rows. A topic recreated under the name is unrelated to it.

        Raises `TopicInUse` if it has broker subscriptions or producers, unless `force` is set.
        """
        try:
            self._connection.act("delete_topic", topic=name, force=force)
        except PartitionsElsewhere:  # partition 0 goes last
            for one in reversed(partitions_of(TopicName.parse(name), map(TopicName.parse, self.topics()))):
                self._connection.act("delete_topic", topic=str(one), force=force)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return list(self._connection.act_until("topics"))

    def close(self) -> None:
        """Wait for unanswered batches, and close the connection. Does nothing in a forked child."""
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

    def _known(self, answer: dict[str, Any]) -> RemoteTopic:
        """Return one object per log: a recreated or renumbered topic is another one."""
        with self._guard:
            log_id, topic = self._topics.get(answer["topic"], ("", None))
            if topic is None or log_id != answer["log_id"]:
                identity = ProducerIdentity(self._producer, shared=self._producer_is_shared)
                if topic is not None and log_id in answer.get("former", ()):
                    identity = topic.identity.of_renumbered()
                topic = RemoteTopic(self._connection, answer, identity, self._buffer_bytes_max, self._clock)
                self._topics[answer["topic"]] = (answer["log_id"], topic)
            else:
                topic.learn(answer)
        return topic


def _given(retention: RetentionSettings | None, ack: str | None) -> dict[str, Any]:
    """Return the properties of a new topic. Servers of earlier versions do not know `ack`."""
    kept = None if retention is None else retention.model_dump()
    return {"retention": kept} if ack is None else {"retention": kept, "ack": ack}


def _encoded(schema: pa.Schema | None) -> str | None:
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema):
        raise SchemaMismatch(f"a schema is a pyarrow.Schema, not {type(schema).__name__}")
    return schema_as_text(schema)
