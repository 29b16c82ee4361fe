"""Accepting what can't be mended: a table that was rolled back or made anew goes on from what it has.

The only place that moves a token without rows. It is asked for by a person, by topic, and it is a pinned commit of
its own, so that the history of the table shows it.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from frazil.core.errors import LakeUnavailable
from frazil.core.offsets import OffsetRange
from frazil.lake.commit import pinned_change
from frazil.lake.tables import TableName
from frazil.lake.token import end_key, gaps, gaps_key, move_key, said_by_snapshots, sum_key


def accept(catalog: Catalog, name: TableName, log_id: str, first_offset: int, move_id: str) -> int:
    """Let the table go on from its rows, or from where the log begins if that is later; returns that offset."""
    try:
        table = catalog.load_table(name.identifier)
    except NoSuchTableError:
        raise LakeUnavailable("catalog", f"{name} is not there yet", "run the pipeline once, it makes it") from None
    has = said_by_snapshots(table, log_id) or 0
    end = max(has, first_offset)
    token = {end_key(log_id): str(end), move_key(log_id): move_id, sum_key(log_id): "{}"}
    missing = [*gaps(table, log_id), *([OffsetRange(has, end)] if has < end else [])]
    token[gaps_key(log_id)] = ",".join(f"{gap.start}-{gap.end}" for gap in missing if gap.end <= end)
    change = pinned_change(table, [], token, {f"frazil.{log_id}.accepted": str(end)})
    try:
        catalog.commit_table(table, change.requirements, change.updates)
    except CommitFailedException as error:
        raise LakeUnavailable("catalog", f"{name} was changed meanwhile; look at it and accept again") from error
    return end
