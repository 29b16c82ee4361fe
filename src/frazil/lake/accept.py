"""Accepting what can't be mended: a table that was rolled back or made anew goes on from what it has.

The only place that moves a token without rows. It is asked for by a person, by topic, and it is a pinned commit of
its own, so that the history of the table shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.coverage import merged
from frazil.core.errors import LakeUnavailable, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.accepted_sum import accepted_sum
from frazil.lake.audit import lacking
from frazil.lake.commit import pinned_change
from frazil.lake.embedded import check_own
from frazil.lake.offset_files import BEYOND, plan_all
from frazil.lake.reasons import reason
from frazil.lake.tables import TableName
from frazil.lake.token import (
    check_handed_over,
    check_no_earlier_log,
    end_key,
    ends,
    gaps,
    gaps_key,
    is_before_token,
    is_transformed,
    logs,
    move_key,
    partition_key,
    said_by_snapshots,
    sequence_key,
    sum_key,
)

GAPS_MAX = 1_000
"""They stand in a property of the table, which every commit writes."""


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
) -> int:
    """Let the table go on from its rows, or from where the log begins if that is later; returns that offset.

    `stored` are the columns of the topic; without them, those of the table. `former` are the logs whose place the log
    has taken. Where rows were deleted the others are read once, for a checksum of what is accepted. A table with rows
    of another log is refused, as the mover refuses it.
    """
    try:
        table = catalog.load_table(name.identifier)
    except NoSuchTableError:
        raise LakeUnavailable("catalog", f"{name} is not there yet", "run the pipeline once, it makes it") from None
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
    change = pinned_change(table, [], token, {f"frazil.{log_id}.accepted": str(end)})
    try:
        catalog.commit_table(table, change.requirements, change.updates)
    except CommitFailedException as error:
        raise LakeUnavailable("catalog", f"{name} was changed meanwhile; look at it and accept again") from error
    return end


def _missing(table: Table, log_id: str, has: int, end: int) -> list[OffsetRange]:
    """What was accepted before, what the table lost of the rows that it had, and what it never gets."""
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
            " it out of the way, and it is made anew",
            table=".".join(table.name()),
            gaps=len(found),
            gaps_max=GAPS_MAX,
        )
    return found


def _held(table: Table, log_id: str) -> int:
    """How far the table has the log now: as its snapshots say, or its token, or else its files."""
    said = said_by_snapshots(table, log_id)
    if said is not None:
        return said
    if log_id not in ends(table):
        return 0
    return _highest_offset(table, logs(table)[log_id]) if is_before_token(table, log_id) else ends(table)[log_id]


def _highest_offset(table: Table, partition: int) -> int:
    """The end of the offsets in the table's files, after a rollback behind all snapshots that speak of the log."""
    name = ".".join(table.name())
    if OFFSET.name not in table.schema().column_names:
        raise TableRefused(
            f"{name} has no column {OFFSET.name}: move it out of the way, and it is made anew", table=name
        )
    end = max((file.high for file in plan_all(table, partition)), default=0)
    if end == BEYOND:
        raise TableRefused(f"{name} has files without statistics of {OFFSET.name}: compact it first", table=name)
    return end
