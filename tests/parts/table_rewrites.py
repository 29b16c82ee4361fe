"""What the model of the tiers does to a table, as other engines would: compaction into other files and orders, expiry,
and the removal of every file that no snapshot needs any more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.table import Table


def rewrite(table: Table, wanted: str, seed: int, cuts: int) -> None:
    """The rows that fit the condition, in any order and in files cut anywhere: as a compaction may leave them."""
    dice = random.Random(seed)
    rows = table.scan(row_filter=wanted).to_arrow()
    if not rows.num_rows:
        return
    order = dice.choice(["as it was", "ascending", "descending", "shuffled"])
    if order == "shuffled":
        rows = rows.take(pa.array(dice.sample(range(rows.num_rows), rows.num_rows)))
    elif order != "as it was":
        rows = rows.sort_by([(rows.column_names[0], order)])  # `_offset`, whatever its name is
    bounds = sorted({0, rows.num_rows, *(dice.randint(0, rows.num_rows) for _ in range(cuts))})
    with table.transaction() as change:
        change.delete(wanted)
        for low, high in itertools.pairwise(bounds):
            change.append(rows.slice(low, high - low))


def expire(table: Table, kept: int) -> None:
    """All but the newest snapshots go, and the one that the table was rolled back to."""
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-kept]]
    old = [each for each in ids if each != table.metadata.current_snapshot_id]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def remove_unneeded_files(table: Table) -> int:
    """Every file of the table's folder that none of its snapshots names goes; returns how many."""
    needed = set(_needed(table))
    folder = _path(table.location())
    unneeded = [path for path in folder.rglob("*") if path.is_file() and path not in needed]
    for path in unneeded:
        path.unlink()
    return len(unneeded)


def _needed(table: Table) -> Iterator[Path]:
    yield _path(table.metadata_location)
    for entry in table.metadata.metadata_log:
        yield _path(entry.metadata_file)
    for snapshot in table.metadata.snapshots:
        yield _path(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            yield _path(manifest.manifest_path)
            yield from (_path(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(table.io))


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)
