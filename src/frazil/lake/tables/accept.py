"""Accept an irreparable table: one that was rolled back or recreated continues from what it has.

This is the only place that moves a token without rows. An administrator requests it by topic, and it is a pinned commit
of its own, so that the table's history shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.coverage import merged
from frazil.core.errors import LakeUnavailable, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.catalogs.embedded import check_own
from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.commit import pinned_change
from frazil.lake.read.audit import lacking
from frazil.lake.read.offset_files import BEYOND, plan_all
from frazil.lake.tables.accepted_sum import accepted_sum
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import (
    check_handed_over,
    check_no_earlier_log,
    end_by_snapshots,
    end_key,
    ends,
    gaps,
    gaps_key,
    is_before_token,
    is_transformed,
    logs,
    move_key,
    partition_key,
    sequence_key,
    sum_key,
)

GAPS_MAX = 1_000
"""The gaps are in a table property, which every commit writes."""


def accept(
    catalog: Catalog,
    name: TableName,
    log_id: str,
    first_offset: int,
    move_id: str,
    stored: pa.Schema | None = None,
    *,
    partition: int = 0,
    former: Iterable[str] = (),
    entries: Mapping[str, str] | None = None,
) -> int:
    """Let the table continue from its rows, or from the log's beginning if that is later; returns that offset.

    `stored` are the columns of the topic; by default, those of the table. `former` are the logs that the log has
    replaced, `entries` what else the table is to record. If rows were deleted, the others are read once for a checksum
    of what is accepted. A table with rows of another log is refused, as by the mover.
    """
    try:
        table = catalog.load_table(name.identifier)
    except NoSuchTableError:
        raise LakeUnavailable("catalog", f"{name} is not there yet", "run the pipeline once to create it") from None
    check_handed_over(table, log_id, former)
    check_no_earlier_log(table, log_id, partition)
    check_own(catalog, table)
    has = _held(table, log_id)
    end = max(has, first_offset)
    missing = _missing(table, log_id, has, end)
    token = {end_key(log_id): str(end), move_key(log_id): move_id, partition_key(log_id): str(partition)}
    token[sum_key(log_id)] = accepted_sum(catalog, name, table, log_id, has, missing, stored)
    token[sequence_key(log_id)] = str(table.metadata.next_sequence_number())
    token[gaps_key(log_id)] = ",".join(f"{gap.start}-{gap.end}" for gap in missing)
    token |= entries or {}
    change = pinned_change(table, [], token, {f"frazil.{log_id}.accepted": str(end)})
    try:
        catalog.commit_table(table, change.requirements, change.updates)
    except CommitFailedException as error:
        raise LakeUnavailable("catalog", f"{name} was changed meanwhile; check it and accept again") from error
    return end


def _missing(table: Table, log_id: str, has: int, end: int) -> list[OffsetRange]:
    """Return the gaps accepted before, the rows that the table lost, and those that it will never get."""
    missing = [gap for gap in gaps(table, log_id) if gap.end <= end]
    partition = logs(table).get(log_id)
    if has and partition is not None and not is_transformed(table):
        try:
            missing += lacking(table, partition, OffsetRange(0, has))
        except (OSError, ValueError, pa.ArrowException) as error:
            why = reason(error, table.io.properties)
            raise LakeUnavailable("object_store", f"{'.'.join(table.name())} cannot be read: {why}") from error
    if has < end:
        missing.append(OffsetRange(has, end))
    found = merged(missing)
    if len(found) > GAPS_MAX:
        raise TableRefused(
            f"{'.'.join(table.name())} lacks rows in {len(found)} places, and at most {GAPS_MAX} can be accepted; move"
            " it away, and it is recreated",
            table=".".join(table.name()),
            gaps=len(found),
            gaps_max=GAPS_MAX,
        )
    return found


def _held(table: Table, log_id: str) -> int:
    """Return the table's current end of the log: by its snapshots, or its token, or else its files."""
    said = end_by_snapshots(table, log_id)
    if said is not None:
        return said
    if log_id not in ends(table):
        return 0
    return _highest_offset(table, logs(table)[log_id]) if is_before_token(table, log_id) else ends(table)[log_id]


def _highest_offset(table: Table, partition: int) -> int:
    """Return the end of the offsets in the table's files, after a rollback behind all snapshots
    that mention the log."""
    name = ".".join(table.name())
    if OFFSET.name not in table.schema().column_names:
        raise TableRefused(f"{name} has no column {OFFSET.name}: move it away, and it is recreated", table=name)
    end = max((file.high for file in plan_all(table, partition)), default=0)
    if end == BEYOND:
        raise TableRefused(f"{name} has files without statistics of {OFFSET.name}: compact it first", table=name)
    return end
