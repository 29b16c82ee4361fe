"""Requests that could not be decoded: list them, and decode them again with the decoder of today.

A replay appends the rows to the tables that the request would have gone to, under its own offset. The row of the error
stays. Derived tables come first and the topic's own table last, as in a move. A replay that was cut off is repeated: a
table that has rows of a request is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from frazil.core.errors import InvalidInput
from frazil.core.names import TopicName
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.core.settings import Settings
from frazil.lake.files.writer import pieces
from frazil.lake.tables.schema import TableName, table_of
from frazil.lake.tables.undecoded import UndecodedRequests
from frazil.pipeline.move.telemetry_tables import TelemetryTables
from frazil.pipeline.move.topic_rules import lifted_of, stored_tenants, tenant_of
from frazil.telemetry.schemas import errors_table
from frazil.telemetry.signals import Signal

BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class UndecodedRequest:
    offset: int
    partition: int
    append_time_us: int
    reason: str
    bytes: int
    replayed: bool
    """Whether the topic's own table has rows of it since."""


@dataclass(slots=True)
class Replay:
    """What a replay did. Requests that today's decoder refuses too are still errors."""

    requests: int = 0
    still_undecoded: int = 0
    rows: dict[str, int] | None = None


class TelemetryErrors:
    def __init__(self, settings: Settings, topic: TopicName, wait: Callable[[float], None]) -> None:
        base, _ = table_of(topic)
        if base.table not in tuple(Signal):
            raise InvalidInput(
                f"{topic} is no topic of telemetry; it is named as /tenant.dataset/traces", field="topic"
            )
        signal, namespace = Signal(base.table), base.namespace
        self._signal = signal
        name = TopicName(namespace, base.table)
        tenant = stored_tenants(settings).get(tenant_of(namespace))
        partitioning = settings.of_topic(name).partitioning
        self._tables = TelemetryTables(signal, namespace, lifted_of(tenant), partitioning)
        self._requests = UndecodedRequests(settings, name, TableName(namespace, errors_table(signal)), wait)

    def list(self, limit: int) -> list[UndecodedRequest]:
        """Return the newest ones, the newest last."""
        found: list[UndecodedRequest] = []
        for log_id, partition in self._requests.logs.items():
            for batch in self._requests.rows(log_id):
                replayed = self._requests.replayed(log_id, batch.column(OFFSET.name))
                times = batch.column(APPEND_TIME.name).cast(pa.int64()).to_pylist()
                sizes = pc.binary_length(batch.column("raw")).to_pylist()
                rows = zip(batch.column(0).to_pylist(), times, batch.column("reason").to_pylist(), sizes, strict=True)
                found += [
                    UndecodedRequest(offset, partition, time, why, size, offset in replayed)
                    for offset, time, why, size in rows
                ]
                found = sorted(found, key=lambda one: (one.append_time_us, one.partition, one.offset))[-limit:]
        return found

    def replay(self) -> Replay:
        """Decode all requests again that have no rows yet, and append their rows."""
        done, rows = Replay(), Counter[str]()
        for log_id in self._requests.logs:
            for batch in self._waiting(log_id):
                done.requests += batch.num_rows
                done.still_undecoded += self._replay(log_id, batch, rows)
        done.requests -= done.still_undecoded
        done.rows = dict(sorted(rows.items()))
        return done

    def _waiting(self, log_id: str) -> Iterator[pa.RecordBatch]:
        """Yield the errors without rows in the topic's own table, a few at a time."""
        for found in self._requests.rows(log_id):
            offsets = found.column(OFFSET.name)
            replayed = pa.array(sorted(self._requests.replayed(log_id, offsets)), pa.int64())
            waiting = found.filter(pc.invert(pc.is_in(offsets, replayed)))
            yield from pieces(waiting, BATCH_BYTES)

    def _replay(self, log_id: str, errors: pa.RecordBatch, added: Counter[str]) -> int:
        """Return how many of these requests still cannot be decoded."""
        renamed = errors.rename_columns(["request" if name == "raw" else name for name in errors.schema.names])
        still = 0
        for part in self._tables.parts(renamed, self._requests.logs[log_id]):
            still += part[self._tables.errors].num_rows
            own = TableName(self._tables.namespace, self._signal.value)
            names = [name for name in part if name not in (own, self._tables.errors)]
            for name in (*names, own):
                if part[name].num_rows:
                    layout = self._tables.tables[name]
                    written = self._tables.written(name)
                    added[name.table] += self._requests.append(name, layout, log_id, part[name], written)
        return still
