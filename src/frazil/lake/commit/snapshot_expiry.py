"""Which snapshots a commit of the mover removes, so that the table's metadata does not grow with the number of commits.

A snapshot is removed only if its removal leaves no unreferenced data file: its child on the main branch is an append,
and an append keeps all files of its parent. Files that compactions, deletes and overwrites replaced stay with the last
snapshot before them until `frazil table expire` removes both.

Never removed are
    snapshots with a tag, all of other branches, and those with statistics
    what the table's properties keep: `history.expire.min-snapshots-to-keep`, `history.expire.max-snapshot-age-ms`, the
    same of the branch `main`, and `gc.enabled: false`
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

REMOVED_MAX = 500
"""Limit per commit: a table with a long history is trimmed in several."""

KEEP_COUNT = "history.expire.min-snapshots-to-keep"
KEEP_AGE_MS = "history.expire.max-snapshot-age-ms"
GC_ENABLED = "gc.enabled"


def removable(metadata: TableMetadata, snapshots_max: int, now_ms: int) -> list[Snapshot]:
    """Return the snapshots that a commit that appends one more should remove, oldest first.

    They are removed a tenth of `snapshots_max` at a time, early enough that there are never more than `snapshots_max`.
    """
    main = list(ancestors(metadata, metadata.current_snapshot_id))
    if len(main) < snapshots_max or not may_remove(metadata):
        return []
    limits = _limits(metadata)
    if limits is None:
        return []
    keep_count, keep_after_ms = limits[0], now_ms - limits[1]
    kept = max(1, keep_count, snapshots_max - snapshots_max // 10) - 1  # the snapshot to be added counts
    is_protected = _protected(metadata)
    found = [
        snapshot
        for at, snapshot in enumerate(main)
        if at >= max(1, kept)  # the parent stays, which the commit asserts
        and _is_append(main[at - 1])
        and snapshot.timestamp_ms < keep_after_ms
        and snapshot.snapshot_id not in is_protected
    ]
    return found[::-1][:REMOVED_MAX]


def may_remove(metadata: TableMetadata) -> bool:
    """Whether the table allows it: some catalogs keep the history themselves (Nessie), and some tables share files."""
    return metadata.properties.get(GC_ENABLED, "true").lower() != "false"


def ancestors(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, as far back as they are kept."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    snapshot = None if snapshot_id is None else by_id.get(snapshot_id)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else by_id.pop(parent, None)


def _limits(metadata: TableMetadata) -> tuple[int, int] | None:
    """Return the number and the age, in ms, that the table's properties keep; None, which keeps all, if unreadable."""
    main = metadata.refs.get(MAIN_BRANCH)
    try:
        count = int(metadata.properties.get(KEEP_COUNT, 1))
        age_ms = int(metadata.properties.get(KEEP_AGE_MS, 0))
    except ValueError:
        return None
    if main is not None:
        count = max(count, main.min_snapshots_to_keep or 1)
        age_ms = max(age_ms, main.max_snapshot_age_ms or 0)
    return count, age_ms


def _protected(metadata: TableMetadata) -> set[int]:
    found = {each.snapshot_id for each in (*metadata.statistics, *metadata.partition_statistics)}
    for name, ref in metadata.refs.items():
        found.add(ref.snapshot_id)
        if name != MAIN_BRANCH and ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            found |= {snapshot.snapshot_id for snapshot in ancestors(metadata, ref.snapshot_id)}
    return found


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND
