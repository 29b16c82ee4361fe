"""Streams of record batches into a table of a tenant, from any Flight client.

descriptor      ["dataset", "table"] or ["table"], see `frazil.doors.flight.targets`
schema          columns that the table has, or gets by the first batch; a table that does not exist is created by it
each batch      as of plain batches into a topic, see `frazil.doors.flight.put.plain`, and each answer likewise
"""

from __future__ import annotations

import pyarrow as pa

from frazil.core.errors import SchemaMismatch
from frazil.doors.admission import StreamRights
from frazil.doors.calls import Context
from frazil.doors.flight.put.intake import Intake
from frazil.doors.flight.put.plain import PlainPut, PlainStream
from frazil.doors.flight.wire import Received, received_schema
from frazil.node.telemetry.tables import TablePublisher, TableTarget


async def put_table(intake: Intake, context: Context, first: Received, target: TableTarget) -> None:
    rights = intake.rights(context, str(target.topic))
    schema = received_schema(first)
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise SchemaMismatch(
                f"column {field.name!r:.200} is dictionary-encoded; send it as {field.type.value_type}",
                field=field.name,
            )
    publisher = intake.node.telemetry(rights.who).table_publisher(rights.who, target, schema)
    await publisher.look()
    await _TableStream(intake, context, rights, schema, publisher).serve()


class _TableStream(PlainStream):
    def __init__(
        self, intake: Intake, context: Context, rights: StreamRights, schema: pa.Schema, publisher: TablePublisher
    ) -> None:
        super().__init__(intake, context, rights, publisher, schema)
        self._table = publisher

    async def _take(self, data: Received, put: PlainPut) -> None:
        self._table.count(put.size_bytes)
        await super()._take(data, put)

    async def _ready(self, batch: pa.RecordBatch) -> None:
        await self._table.ready(batch)
