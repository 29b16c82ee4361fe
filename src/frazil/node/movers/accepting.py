"""`frazil pipeline accept`: let a table continue after lost rows or a rollback, at an administrator's request."""

from __future__ import annotations

import uuid

import pyarrow as pa

from frazil.core.errors import TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.accept import accept
from frazil.lake.tables.accept_derived import accepted_derived
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.store import TableStore
from frazil.node.owner import open_source
from frazil.telemetry.signals import signal_of


def accept_topic(settings: Settings, topic: str) -> tuple[str, int]:
    """Return the table's name and the offset from which it continues."""
    parsed = TopicName.parse(topic)
    with open_source(settings) as source:
        info = next((log for log in source.logs() if log.topic == parsed), None)
        if info is None:
            raise TopicNotFound(topic)
        name, partition = table_of(parsed)
        catalog, properties = open_catalog(settings), catalog_properties(settings)
        tables = TableStore(catalog, properties.get("warehouse"), properties)
        rules, stored = settings.of_topic(parsed), pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        has_own_rows = rules.sql is None and signal_of(parsed, stored) is None
        if has_own_rows:  # otherwise the mover has created it, with the columns of derived rows or of Spark's result
            tables.ensure(name, stored, rules.partitioning)
        info.check_objects()
        former = [one.log_id for one in info.former]
        move_id = str(uuid.uuid4())
        entries = {} if has_own_rows else accepted_derived(catalog, name, info.log_id, partition, move_id)
        return str(name), accept(
            catalog,
            name,
            info.log_id,
            info.held_from,
            move_id,
            stored,
            partition=partition,
            former=former,
            entries=entries,
        )
