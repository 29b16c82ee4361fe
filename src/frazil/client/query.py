"""Send an SQL query to the owner and stream its result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight

from frazil.client.brokers import Link
from frazil.client.connection import FAILURES, Connection
from frazil.client.reading import ALIGNED


def run_query(
    connection: Connection,
    query: str,
    snapshot_id: int | None = None,
    at: str | None = None,
    topic: str | None = None,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the columns and an iterator of batches; raises `InvalidInput` for a wrong query, also while it runs.

    The owner of `topic` answers, as far as it is known; any broker without a topic.
    """
    asked = {"query": query, "snapshot": snapshot_id, "at": at}
    ticket = pa.flight.Ticket(json.dumps({"sql": asked}).encode())
    link = connection.link(topic)
    try:
        stream = link.flight.do_get(ticket, read_options=ALIGNED)
        schema = stream.schema
    except FAILURES as error:
        raise connection.failed(error, None, link) from None
    return schema, _batches(connection, link, stream)


def _batches(connection: Connection, link: Link, stream: Any) -> Iterator[pa.RecordBatch]:
    try:
        for chunk in stream:
            yield chunk.data
    except FAILURES as error:
        raise connection.failed(error, None, link) from None
    finally:
        stream.cancel()
