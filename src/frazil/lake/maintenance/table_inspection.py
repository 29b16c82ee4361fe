"""Table inspection for maintenance: contents, planned changes, and reasons to refuse them.

The same checks run before a change and for a dry run. Only `remove_orphans` changes anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.core.errors import TableNotFound, TableRefused
from frazil.core.names import TopicName
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalogs.embedded import check_own
from frazil.lake.catalogs.opening import catalog_exists, catalog_properties, open_catalog
from frazil.lake.catalogs.table_names import table_names
from frazil.lake.files.store_errors import lake_error
from frazil.lake.maintenance.orphan_files import folders_elsewhere, place, remove_orphans
from frazil.lake.tables.schema import PARTITION, TableName, partitioned_by, shown_partitioning, table_of
from frazil.lake.tables.token import ends, line, read_token

HOUR_MS = 3_600_000
SMALL = 0.75
"""Fraction of the target size, as in Iceberg's own rewrite."""


@dataclass(frozen=True, slots=True)
class TableOverview:
    """One table as shown by `frazil table list`. `ends` has the committed end of each log."""

    table: str
    rows: int
    files: int
    bytes: int
    snapshots: int
    committed_ms: int | None
    ends: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of one partition, and how many of them are small."""

    partition: str
    files: int
    rows: int
    bytes: int
    small_files: int
    small_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The files that compaction would merge."""

    files: int
    bytes: int
    partitions: int


class TableInspector:
    """Inspects the tables of the settings' catalog."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = catalog_properties(settings)
        self._opened: Catalog | None = None
        self._known_places: dict[TableName, list[str]] | None = None
        self._known_folders: frozenset[str] | None = None

    def names(self, topic: str | None = None, shown: Callable[[TableName], bool] | None = None) -> list[TableName]:
        """Return the table of a topic, or all tables that hold rows of a log. Those that are not `shown` are not
        loaded: an error would name them."""
        if topic is not None:
            name = table_of(TopicName.parse(topic))[0]
            self.table(name)
            return [name]
        return [name for name in self._all() if (shown is None or shown(name)) and ends(self.table(name))]

    def in_namespaces(self, wanted: Callable[[str], bool]) -> list[TableName]:
        """Return all tables in these namespaces, whether or not they hold rows of a log."""
        return self._all(wanted)

    def table(self, name: TableName) -> Table:
        catalog = self.catalog()
        if catalog is None:
            raise _not_there(name)
        try:
            return catalog.load_table(name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            raise _not_there(name) from None
        except Exception as error:
            raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error

    def summary(self, name: TableName) -> TableOverview:
        table = self.table(name)
        snapshot = table.current_snapshot()
        counts = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        return TableOverview(
            str(name),
            int(counts.get("total-records", 0)),
            int(counts.get("total-data-files", 0)),
            int(counts.get("total-files-size", 0)),
            len(table.snapshots()),
            snapshot.timestamp_ms if snapshot else None,
            ends(table),
        )

    def description(self, name: TableName) -> dict[str, Any]:
        """Return a full description of a table, as plain values."""
        table = self.table(name)
        return {
            **self.summary(name).as_dict(),
            "location": table.location(),
            "columns": [
                {"name": field.name, "type": str(field.field_type), "required": field.required}
                for field in table.schema().fields
            ],
            "partitioning": shown_partitioning(partitioned_by(table)),
            "properties": dict(table.metadata.properties),
            "history": [_described(snapshot) for snapshot in table.snapshots()],
            "partitions": [asdict(each) for each in self.partitions(table)],
        }

    def partitions(self, table: Table) -> list[PartitionFiles]:
        small_bytes_max = self._settings.maintenance.target_file_bytes * SMALL
        sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for task in table.scan().plan_files():
            key = f"{task.file.spec_id}/{task.file.partition}"
            sizes[key].append((task.file.file_size_in_bytes, task.file.record_count))
        found = []
        for key, files in sorted(sizes.items()):
            small = [size for size, _ in files if size < small_bytes_max]
            rows, size = sum(rows for _, rows in files), sum(size for size, _ in files)
            found.append(PartitionFiles(key.partition("/")[2], len(files), rows, size, len(small), sum(small)))
        return found

    # --- planned changes

    def compaction(self, name: TableName) -> CompactionPlan:
        """Plan as Iceberg does: partitions with enough small files, or with two or more that fill one."""
        rules = self._settings.maintenance
        chosen = [
            each
            for each in self.partitions(self.table(name))
            if each.small_files >= rules.files_min
            or (each.small_files > 1 and each.small_bytes > rules.target_file_bytes)
        ]
        return CompactionPlan(
            sum(each.small_files for each in chosen), sum(each.small_bytes for each in chosen), len(chosen)
        )

    def expires_before_ms(self, name: TableName, now_ms: int) -> int:
        """Return the expiry time: by age, and earlier if there are too many snapshots, but never
        within the last hour.
        """
        rules = self._settings.maintenance
        by_age_ms = now_ms - rules.snapshot_age_hours * HOUR_MS
        times_ms = sorted((snapshot.timestamp_ms for snapshot in self.table(name).snapshots()), reverse=True)
        if len(times_ms) <= rules.snapshots_max:
            return by_age_ms
        return max(by_age_ms, min(times_ms[rules.snapshots_max - 1], now_ms - HOUR_MS))

    def expiring(self, name: TableName, before_ms: int, keep: int) -> list[int]:
        """Return the snapshots that expiry would drop: old ones, except the last `keep` of the main branch and named
        ones.
        """
        table = self.table(name)
        present = [snapshot.snapshot_id for snapshot in line(table)]
        kept = {*present[:keep], *(ref.snapshot_id for ref in table.metadata.refs.values())}
        return [
            snapshot.snapshot_id
            for snapshot in table.snapshots()
            if snapshot.timestamp_ms < before_ms and snapshot.snapshot_id not in kept
        ]

    def is_sorted(self, name: TableName) -> bool:
        """Whether the table has a sort order of its own."""
        return bool(self.table(name).sort_order().fields)

    def order(self, name: TableName) -> str | None:
        """Return the sort order for readers; None for a statement's result without offsets."""
        there = self.table(name).schema().column_names
        wanted = [column.name for column in (PARTITION, OFFSET) if column.name in there]
        return ", ".join(f"{column} ASC NULLS LAST" for column in wanted) if OFFSET.name in wanted else None

    # --- reasons to refuse

    def check_tokens(self, name: TableName) -> None:
        """Refuse a table that was rolled back: expiry would remove the only evidence."""
        table = self.table(name)
        check_own(table.catalog, table)
        for log_id in ends(table):
            read_token(table, log_id)

    def may_delete(self, name: TableName) -> bool:
        """Whether files may be deleted: some catalogs (Nessie) keep the history themselves and forbid it."""
        return self.table(name).metadata.properties.get("gc.enabled", "true").lower() != "false"

    def check_may_delete(self, name: TableName) -> None:
        check_own(self.table(name).catalog, self.table(name))
        if not self.may_delete(name):
            raise TableRefused(
                f"{name}: its catalog forbids to delete files (gc.enabled is false); use the catalog's own clean-up",
                table=str(name),
            )

    def check_alone(self, name: TableName) -> None:
        """Check that only the table's own files are below its location: otherwise other files could be taken for
        orphans.
        """
        mine = place(self.table(name).location())
        for other, places in self.places().items():
            for theirs in places if other != name else ():
                _refuse_within(name, mine, theirs, f"files of {other}")
        if self._settings.data is not None:
            for folder, what in ((self._settings.log_folder, "the log"), (self._settings.data, "the data folder")):
                _refuse_within(name, mine, place(str(folder.absolute())), what)

    def remove_orphans(self, name: TableName, listed: Sequence[str]) -> list[str]:
        """Delete the listed orphans, except files needed now; returns the deleted paths."""
        catalog = self.catalog()
        if catalog is None:
            raise _not_there(name)
        return remove_orphans(catalog, name, listed, self._folders_elsewhere)

    def _folders_elsewhere(self) -> frozenset[str]:
        """Return folders in which a table has files outside of its location. Cached, like `places`."""
        if self._known_folders is None:
            self._known_folders = folders_elsewhere(self.table(name) for name in self._all())
        return self._known_folders

    def places(self) -> dict[TableName, list[str]]:
        """Return the locations of each table's files. Cached: files of a later table are too young to be orphans."""
        if self._known_places is None:
            tables = {name: self.table(name) for name in self._all()}
            self._known_places = {
                name: [place(each) for each in (table.location(), *_other_places(table))]
                for name, table in tables.items()
            }
        return self._known_places

    def catalog(self) -> Catalog | None:
        """Return None if nothing was ever moved."""
        if self._opened is None and catalog_exists(self._settings):
            self._opened = open_catalog(self._settings)
        return self._opened

    def _all(self, wanted: Callable[[str], bool] = lambda _: True) -> list[TableName]:
        catalog = self.catalog()
        if catalog is None:
            return []
        try:
            return table_names(catalog, wanted)
        except Exception as error:
            raise lake_error("the tables", error, self._known.get("warehouse", ""), self._known) from error


def _refuse_within(name: TableName, mine: str, other: str, what: str) -> None:
    if other == mine or other.startswith(f"{mine}/"):
        raise TableRefused(
            f"{name}: {what} are below the table's own location ({other}), and would be taken for orphans; "
            "move one of them elsewhere",
            table=str(name),
        )


def _other_places(table: Table) -> Sequence[str]:
    names = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
    return [table.metadata.properties[name] for name in names if name in table.metadata.properties]


def _described(snapshot: Snapshot) -> dict[str, Any]:
    operation = snapshot.summary.operation.value if snapshot.summary else None
    return {"snapshot_id": snapshot.snapshot_id, "time_ms": snapshot.timestamp_ms, "operation": operation}


def _not_there(name: TableName) -> TableNotFound:
    return TableNotFound(str(name))
