"""SQL queries of a verb: answered by the named server, else in this process from the folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from frazil.cli.target.folder import settings_on_disk
from frazil.cli.target.server import Server, named_server
from frazil.core.errors import TopicNotFound
from frazil.core.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.node.tiers.cluster_logs import ForwardedCaller


class Question(NamedTuple):
    """A query, as of a snapshot or a time; with the rules of its caller if it runs for a server."""

    sql: str
    snapshot: int | None = None
    at: datetime | None = None
    rules: Sequence[Mapping[str, Any]] | None = None
    forwarded: ForwardedCaller | None = None
    """How the query of a server asks other brokers."""


class Rows(NamedTuple):
    """A query result, as it streams."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@contextlib.contextmanager
def answered(
    asked: Question,
    server: str | None,
    data: Path | None,
    config: Path | None,
    *,
    confined: bool = False,
    topic: str | None = None,
) -> Iterator[Rows]:
    """Run a query. In a cluster the owner of `topic` answers it: it has the rows that are not moved at hand."""
    named = None if confined else named_server(server, data, config)
    if named is not None:
        with _served(asked, named, topic) as rows:
            yield rows
        return
    settings = settings_on_disk(data, config)
    with needs():
        from frazil.node.query.session import AsOf, SqlSession  # first: it needs the package that the verb is named for
        from frazil.node.tiers.cluster_logs import OtherBrokers, open_query_logs
    from frazil.node.query.readable import readable

    as_of, may_read = AsOf(asked.snapshot, asked.at), readable(asked.rules)
    with (
        open_query_logs(settings, OtherBrokers.of_caller(settings, asked.forwarded) if confined else None) as logs,
        SqlSession(settings, logs, as_of, confined=confined, may_read=may_read) as session,
    ):
        answer = session.run(asked.sql)
        yield Rows(answer.schema, answer.batches)


@contextlib.contextmanager
def _served(asked: Question, server: Server, topic: str | None) -> Iterator[Rows]:
    from frazil.client.connection import Connection
    from frazil.client.query import run_query
    from frazil.core.clock import SystemClock

    opened = Connection(server.flight(), 0, SystemClock(), server.flight_credentials)
    with contextlib.closing(opened) as connection:
        if topic is not None:
            with contextlib.suppress(TopicNotFound):  # the query says what is missing
                connection.act("topic_stats", topic=topic)
        at = None if asked.at is None else asked.at.isoformat()
        yield Rows(*run_query(connection, asked.sql, asked.snapshot, at, topic))
