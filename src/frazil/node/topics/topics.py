"""Create, change, describe and delete topics: one implementation for all doors, the command line and programs.

With a running broker, deletions and new topics for its clients go through it, because it knows who uses a topic.
Without one, they are applied to the log and to the stored records of an earlier broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from frazil.broker.topics.deleting import delete_with_records
from frazil.broker.topics.making import create_logs, created_elsewhere
from frazil.core.errors import BrokerOff, FrazilError, InvalidInput, TopicExists, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.core.partitions import partition_names
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage
from frazil.log.topic import Topic
from frazil.log.write.acks import ack_of_new_topic
from frazil.node.movers.table_progress import MoverStatus, status_of
from frazil.node.threads import Threads
from frazil.node.topics.summaries import TopicSummaries

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.broker.broker import Broker
    from frazil.broker.store.records import Stored
    from frazil.node.access.topic_quotas.claims import TopicClaims

CALLS_MAX = 4
"""Number of concurrent calls from event loops; further calls wait."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Topics:
    """Thread-safe, but not for the thread of the broker's event loop: use `run` there."""

    def __init__(
        self,
        storage: Storage,
        broker_of: Callable[[], Broker | None] = lambda: None,
        status: MoverStatus | None = None,
        claims_of: Callable[[], TopicClaims | None] = lambda: None,
    ) -> None:
        """`broker_of` returns None if the broker is off, and raises `TryLater` while it is not open yet.

        `claims_of` returns who records the creators of topics; None while security is off.
        """
        self._claims_of = claims_of
        self._storage = storage
        self._broker_of = broker_of
        self._status = status or status_of(storage.settings)
        self._threads = Threads("frazil-topics", CALLS_MAX)
        """Separate from the loop's own threads: calls wait here for the broker, and the broker waits for those."""

    async def run(self, call: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        """Make a call of this object from an event loop."""
        return await self._threads.run(call, *arguments, **named)

    # --- inspect

    def names(self) -> list[TopicName]:
        """Return all topics and partitions of the log and the broker, sorted."""
        return sorted(self._summaries().names())

    def family(self, name: TopicName) -> set[TopicName]:
        """Return the existing ones of the topic (without partition number) and its partitions."""
        return self._summaries().family(name)

    def summaries(self, names: Iterable[TopicName]) -> list[dict[str, Any]]:
        """Summarize topics for a list, without asking a catalog. Deleted topics are left out."""
        found = self._summaries()
        report = found.last_report()
        return [one for name in names if (one := found.summary(name, report)) is not None]

    def describe(self, name: TopicName) -> dict[str, Any]:
        """Describe a topic, its log, its table and its users; or the sums of its partitions."""
        return self._summaries().describe(name)

    def log_rows(self, name: TopicName) -> int | None:
        """Count the rows that a deletion would remove; None if there is no log, or one cannot be opened."""
        return self._summaries().log_rows(name)

    def log_id(self, name: TopicName) -> str:
        """Return the id of the topic's log."""
        return self._storage.record(str(name)).log_id

    def retention(self, name: TopicName) -> RetentionSettings | None:
        """Return the topic's own retention; None if that of the settings applies."""
        return self._storage.record(str(name)).retention

    # --- create

    def creating(self, by: Principal, name: TopicName) -> AbstractAsyncContextManager[None]:
        """Charge a topic to its creator while the broker creates it; raises `QuotaExceeded`. For event loops."""
        claims = self._claims_of()
        return nullcontext() if claims is None else claims.creating_on_loop(by, [name])

    def instead_of(self, error: FrazilError, by: Principal, name: TopicName) -> FrazilError:
        """Return the error of a creation as the caller gets it: without a word of topics that it may not describe."""
        claims = self._claims_of()
        return error if claims is None else claims.instead_of(error, by, [name]) or error

    def open(self, name: str, *, schema: pa.Schema | None = None, create: bool = True, by: Principal = LOCAL) -> Topic:
        """Open a topic, which is created if it does not exist. With `schema` it is a typed topic of these columns.

        `by` is the principal that a new topic is charged to.
        """
        broker = self._broker_of() if create else None
        if broker is None and (not create or self._claims_of() is None):
            return self._storage.topic(name, schema=schema, create=create)
        parsed = TopicName.parse(name)
        if parsed not in self._storage.family(parsed):
            # Another call was faster, or it has no log: then it is not found.
            with contextlib.suppress(TopicExists), self._claimed(by, [parsed]):
                if broker is None:
                    create_logs(self._storage, parsed, 0, None, schema=schema)
                else:
                    broker.identities.make(parsed, 0, schema)
                    _ask(broker, broker.until_served([parsed]))
        try:
            return self._storage.topic(name, schema=schema, create=False)
        except TopicNotFound:
            if broker is None or not broker.identities.is_elsewhere(parsed):
                raise
            raise created_elsewhere(parsed) from None

    def create(
        self,
        name: TopicName,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        reliable: bool = True,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
        also: Mapping[str, Stored] | None = None,
        introduce: bool = True,
        by: Principal = LOCAL,
    ) -> list[TopicName]:
        """Create a topic, or all its partitions: all or none. Returns their names; raises `TopicExists`.

        `by` is the principal that they are charged to, each as one topic; raises `QuotaExceeded`. With `introduce` the
        broker adds a message topic at once, otherwise on the first request of a client. `also` are records that are
        stored atomically with it. `ack` is the ack level, by default that of the settings.
        """
        names = [name] if partitions is None else partition_names(name, partitions)
        if schema is not None and (partitions is not None or not reliable):
            field = "reliable" if partitions is None else "partitions"
            raise InvalidInput(f"{field}: a typed topic has no partitions and is reliable", field=field)
        if not reliable and retention is not None:
            raise InvalidInput("retention: a non-reliable topic keeps nothing", field="retention")
        if not reliable and ack is not None:
            raise InvalidInput("ack: a non-reliable topic stores nothing", field="ack")
        ack_of_new_topic(self._storage.settings, ack)
        broker = self._broker_of()
        if broker is None and not reliable:
            raise BrokerOff
        with self._claimed(by, names):
            if broker is not None and schema is None and introduce:
                return _ask(
                    broker,
                    broker.create_topics(
                        name, partitions or 0, reliable=reliable, retention=retention, also=also, ack=ack
                    ),
                )
            if broker is None:
                create_logs(self._storage, name, partitions or 0, retention, schema=schema, ack=ack)
            else:
                broker.identities.make(name, partitions or 0, schema, retention, ack)
                _ask(broker, broker.until_served(names))
        return names

    def _claimed(self, by: Principal, names: Sequence[TopicName]) -> AbstractContextManager[None]:
        claims = self._claims_of()
        return nullcontext() if claims is None else claims.creating(by, names)

    # --- change

    def change_schema(self, name: str, schema: pa.Schema) -> Topic:
        """Give a typed topic new nullable columns or wider types."""
        changed = self._storage.change_schema(name, schema)
        self._follow(name)
        return changed

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        """Set the topic's own retention; None restores that of the settings."""
        self._storage.set_retention(name, retention)
        self._follow(name)

    def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic, its partitions and all their state permanently. Its table is kept.

        Raises `TopicInUse` if it has subscriptions or producers, unless `force` is set, which deletes them too.
        """
        broker = self._broker_of()
        if broker is None:
            delete_with_records(self._storage, str(name), force=force)
        else:
            _ask(broker, broker.delete_topic(name, force=force))

    def _follow(self, name: str) -> None:
        """The folder has the change, durably; the record in the metadata store follows."""
        with contextlib.suppress(TryLater):  # not open yet: when it starts it brings all records to the folder's state
            broker = self._broker_of()
            if broker is not None:
                broker.identities.changed(TopicName.parse(name))

    def _summaries(self) -> TopicSummaries:
        broker = self._broker_of()
        return TopicSummaries(self._storage, None if broker is None else broker.topics, self._status)


def _ask(broker: Broker, call: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for a call of the broker, from any other thread."""
    assert broker.loop is not None, "the broker is not started"
    return asyncio.run_coroutine_threadsafe(call, broker.loop).result()
