"""Removal of files that no snapshot references, without deleting any that a table is about to commit.

Iceberg's procedure lists files that are old and that the table does not reference. Age alone is no proof: a mover that
was stopped for days still holds files that it is about to commit, and a clock may be wrong. So nothing is deleted by
the list alone:

    1. list     files written later are not on the list
    2. fence    a commit without rows: moves planned before it are refused, and planned again (`commit`)
    3. look     files that the table references now, and files of other tables there, stay
    4. delete   the rest

The look sees a move that committed before the fence. A move that commits after it has written its files after the list.
This holds for moves, which are pinned; commits of other engines are protected by the age alone.
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
from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.commit import pinned_change
from frazil.lake.files.store_errors import lake_error
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import SWEPT

ATTEMPTS_MAX = 10
NOT_OF_A_PATH = frozenset("#?;")
"""PyIceberg ends the path at these characters, and would delete another file."""
DELETES_AT_ONCE = 8

_log = logging.getLogger("frazil.lake")


def remove_orphans(
    catalog: Catalog, name: TableName, listed: Sequence[str], elsewhere: Callable[[], frozenset[str]]
) -> list[str]:
    """Delete the listed files, except those needed now; returns the deleted paths.

    `elsewhere` returns the folders in which other tables have files, see `folders_elsewhere`.
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
    """Return every file that the table references: its metadata, and the files of its snapshots."""
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
    """Return the folders outside of each table's own location in which it has files.

    A table whose location was changed still has its older files in the former one.
    """
    found = set()
    for table in tables:
        own = f"{place(table.location())}/"
        found |= {_folder(path) for path in map(place, files_of(table)) if not path.startswith(own)}
    return frozenset(found)


def place(location: str) -> str:
    """Normalize spellings of one location: file:/a, file:///a, /a; s3 and s3a."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return str(Path(unquote(parts.path)).resolve())
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return f"{scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _fenced(catalog: Catalog, name: TableName) -> Table:
    """Return the table after a fencing commit, which invalidates all earlier plans."""
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
