"""Removal of tables with all their files, and the proof that nothing of them is left.

    1. plan     each table, with its location; refused if it may touch what belongs to others
    2. purge    the catalog drops the table with the files that it references; then whatever else is at its location
    3. left     what is still there: tables by name, files by location

A plan outlives its table: with it, a purge that was interrupted goes on. A table is refused, and not touched, if

    - no row of a log was ever moved to it: somebody else has made it
    - its files are not alone at its location, or it references files elsewhere
    - its catalog forbids to delete files
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileSystem
from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from frazil.core.errors import FrazilError, TableNotFound, TableRefused
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties
from frazil.lake.files.store_errors import lake_error
from frazil.lake.maintenance.orphan_files import files_of, place
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import ends

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class PlannedPurge:
    table: TableName
    location: str


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge has removed. Files that the catalog removed by itself are counted too."""

    files: int
    bytes: int


class TablePurge:
    """Used by one thread."""

    def __init__(self, settings: Settings) -> None:
        self._known = catalog_properties(settings)
        self._tables = TableInspector(settings)

    def plan(self, namespaces: Callable[[str], bool], known: Collection[str]) -> list[PlannedPurge]:
        """Return the tables of some namespaces; raises `TableRefused` for the first that must not be touched.

        `known` are names of tables that Frazil makes there before it has rows for them.
        """
        return [self._planned(name, known) for name in self._tables.in_namespaces(namespaces)]

    def purge(self, planned: PlannedPurge) -> Purged:
        """Remove a planned table, or the rest of one that was removed in part."""
        name, io = planned.table, None
        try:
            with contextlib.suppress(TableNotFound):
                table = self._tables.table(name)
                if place(table.location()) == place(planned.location):  # else it was made again since: planned anew
                    io = table.io
            files = self._files(planned.location, io)
            if io is not None:
                catalog = self._tables.catalog()
                assert catalog is not None
                with contextlib.suppress(NoSuchTableError):
                    catalog.purge_table(name.identifier)
            self._remove_all(planned.location, io)
        except FrazilError:
            raise
        except Exception as error:
            raise lake_error(name, error, planned.location, self._known) from error
        return Purged(len(files), sum(one.size or 0 for one in files))

    def drop_namespaces(self, names: Iterable[str]) -> None:
        """Drop empty namespaces of the catalog."""
        catalog = self._tables.catalog()
        for name in names if catalog is not None else ():
            assert catalog is not None
            try:
                with contextlib.suppress(NoSuchNamespaceError, NamespaceNotEmptyError):
                    catalog.drop_namespace((name,))
            except Exception as error:
                raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error

    def left(self, namespaces: Callable[[str], bool], locations: Iterable[str]) -> list[str]:
        """Return the tables that are still in these namespaces, and the files at these locations."""
        found = [f"table {name}" for name in self._tables.in_namespaces(namespaces)]
        for location in locations:
            try:
                found += [f"file {one.path}" for one in self._files(location, None)]
            except Exception as error:
                raise lake_error(location, error, location, self._known) from error
        return found

    # --- checks

    def _planned(self, name: TableName, known: Collection[str]) -> PlannedPurge:
        table = self._tables.table(name)
        if not ends(table) and name.table not in known:
            raise TableRefused(
                f"{name} was not made by Frazil: no row of a log was moved to it; drop it yourself, or rename it",
                table=str(name),
            )
        self._tables.check_may_delete(name)
        self._tables.check_alone(name)
        self._check_within_no_other(name, table)
        self._check_own_files(name, table)
        return PlannedPurge(name, table.location())

    def _check_within_no_other(self, name: TableName, table: Table) -> None:
        mine = place(table.location())
        warehouse = place(self._known.get("warehouse", "")) if "://" in self._known.get("warehouse", "") else None
        if warehouse is not None and (warehouse == mine or warehouse.startswith(f"{mine}/")):
            raise TableRefused(f"{name} is at {mine}, with all other tables below; move it away", table=str(name))
        for other, places in self._tables.places().items():
            if other != name and any(mine.startswith(f"{theirs}/") for theirs in places):
                raise TableRefused(f"{name} is within the location of {other}; move one of them", table=str(name))

    def _check_own_files(self, name: TableName, table: Table) -> None:
        """The catalog deletes what the table references: files elsewhere may be of another table."""
        mine = [f"{each}/" for each in self._tables.places().get(name, ())]
        for path in files_of(table):
            if not any(place(path).startswith(each) for each in mine):
                raise TableRefused(
                    f"{name} references {path}, which is not at its location: another table may need it",
                    table=str(name),
                )

    # --- files

    def _files(self, location: str, io: FileIO | None) -> list[FileInfo]:
        fs, path = self._place(location, io)
        return [one for one in fs.get_file_info(FileSelector(path, True, True)) if one.is_file]

    def _remove_all(self, location: str, io: FileIO | None) -> None:
        fs, path = self._place(location, io)
        with contextlib.suppress(FileNotFoundError):
            fs.delete_dir(path)

    def _place(self, location: str, io: FileIO | None) -> tuple[FileSystem, str]:
        used = io or load_file_io(self._known, location)
        if not isinstance(used, PyArrowFileIO):
            raise TableRefused(f"the files at {location} can't be listed: use another py-io-impl", location=location)
        scheme, netloc, path = used.parse_location(location, used.properties)
        return used.fs_by_scheme(scheme, netloc), path
