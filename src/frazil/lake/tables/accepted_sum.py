"""The checksum with which an accepted table continues."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.core.coverage import below, merged, total, without
from frazil.core.offsets import OffsetRange
from frazil.core.settings.lake import ReaderSettings
from frazil.lake.files.checksum import RowsChecksum, to_text
from frazil.lake.read.history import Plan, TableHistory
from frazil.lake.read.offset_files import plan_offsets
from frazil.lake.tables.schema import TableName, topic_of
from frazil.lake.tables.token import end_key, gaps, is_before_token, is_transformed, line, logs, sum_key
from frazil.lake.tables.topics import stored_columns

NOTHING = "{}"


def accepted_sum(
    catalog: Catalog,
    name: TableName,
    table: Table,
    log_id: str,
    has: int,
    missing: Sequence[OffsetRange],
    stored: pa.Schema | None,
) -> str:
    """Return that of the snapshot the table was rolled back to, or its current one; if rows were deleted, a new one."""
    partition = logs(table).get(log_id)
    if not has or partition is None or is_transformed(table):
        return NOTHING
    lost = total(below(merged(missing), has)) - total(below(merged(gaps(table, log_id)), has))
    recorded = _recorded(table, log_id)
    if not lost and recorded is not None:
        return recorded
    history = TableHistory(catalog, topic_of(name, partition), log_id, ReaderSettings())
    checksum = RowsChecksum()
    for part in without(OffsetRange(0, has), missing):
        plan = Plan(table, plan_offsets(table, partition, part), part, [])
        reader = history.read(part.start, part.end, stored_columns(table) if stored is None else stored, plan)
        try:
            for rows in reader:
                checksum.add(rows)
        finally:
            reader.close()
    return to_text(checksum.streams())


def _recorded(table: Table, log_id: str) -> str | None:
    """Return the checksum of the newest snapshot that mentions the log, else of the table; None if neither covers these
    rows."""
    for snapshot in line(table):
        said = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if end_key(log_id) in said:
            return said.get(sum_key(log_id))
    return None if is_before_token(table, log_id) else table.metadata.properties.get(sum_key(log_id))
