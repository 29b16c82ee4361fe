"""The removal of files that no snapshot knows of, so that none goes that a table has or is about to have.

Iceberg's procedure lists the files that are old and that the table does not name. Age alone is no proof: a mover that
was stopped for days still holds files that it is about to commit, and a clock may be wrong. So nothing is deleted by
the list alone:

    1. list     what was written later is not on the list
    2. fence    a commit of no rows: moves that were planned before it are refused, and planned anew (`commit`)
    3. look     what the table names by now, and what other tables have there, stays
    4. delete   the rest

A move that has committed before the fence is seen by the look. One that commits after it has written its files after
the list. This holds for moves, which are pinned; another engine's commits are guarded by the age alone.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from frazil.core.errors import LakeUnavailable, TryLater
from frazil.lake.commit import pinned_change
from frazil.lake.reasons import reason
from frazil.lake.store_errors import lake_error
from frazil.lake.tables import TableName
from frazil.lake.token import SWEPT

ATTEMPTS_MAX = 10
NOT_OF_A_PATH = frozenset("#?;")
"""PyIceberg takes what follows for no part of the path, and would delete another file."""
DELETES_AT_ONCE = 8

_log = logging.getLogger("frazil.lake")


def remove_orphans(
    catalog: Catalog, name: TableName, listed: Sequence[str], elsewhere: Callable[[], frozenset[str]]
) -> list[str]:
    """Delete what was listed before, but for what is needed now; the paths that are gone.

    `elsewhere` gives the folders in which other tables have files, see `folders_elsewhere`.
    """
    if not listed:
        return []
    table = _fenced(catalog, name)
    try:
        needed = {place(path) for path in files_of(table)}
        folders = elsewhere()
    except Exception as error:
        why = reason(error, {**catalog.properties, **table.io.properties})
        raise LakeUnavailable(
            "object_store", f"{name}: it is not known which files are needed, so none was deleted: {why}"
        ) from error
    orphans = [path for path in listed if place(path) not in needed and _folder(place(path)) not in folders]
    with ThreadPoolExecutor(DELETES_AT_ONCE) as pool:
        gone = list(pool.map(lambda path: _deleted(table.io, path), orphans))
    return [path for path, is_gone in zip(orphans, gone, strict=True) if is_gone]


def files_of(table: Table) -> Iterator[str]:
    """Every file that the table names: its metadata, and what its snapshots have."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (each.statistics_path for each in (*metadata.statistics, *metadata.partition_statistics))
    read: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))


def folders_elsewhere(tables: Iterable[Table]) -> frozenset[str]:
    """The folders outside of each table's own location in which it has files.

    A table that was given another location still has its older files in the former one.
    """
    found = set()
    for table in tables:
        own = f"{place(table.location())}/"
        found |= {_folder(path) for path in map(place, files_of(table)) if not path.startswith(own)}
    return frozenset(found)


def place(location: str) -> str:
    """A location without the spellings that mean the same: file:/a, file:///a, /a; s3 and s3a."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return str(Path(unquote(parts.path)).resolve())
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return f"{scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _fenced(catalog: Catalog, name: TableName) -> Table:
    """The table behind a commit that no earlier plan survives."""
    for _ in range(ATTEMPTS_MAX):
        try:
            table = catalog.load_table(name.identifier)
            mark = {SWEPT: str(uuid.uuid4())}
            change = pinned_change(table, [], {}, mark, properties=mark)
            catalog.commit_table(table, change.requirements, change.updates)
            return catalog.load_table(name.identifier)
        except CommitFailedException as error:
            _log.info("%s: the fence was refused (%s); trying again", name, reason(error, catalog.properties))
        except Exception as error:
            raise lake_error(name, error, catalog.properties.get("warehouse", ""), catalog.properties) from error
    raise TryLater(f"{name}: others committed all the time, and no orphan was deleted; run it again")


def _deleted(io: FileIO, path: str) -> bool:
    if not NOT_OF_A_PATH.isdisjoint(path):
        return False
    try:
        io.delete(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        _log.warning("%s could not be deleted and is left: %s", path, reason(error, io.properties))
        return False
    return True
