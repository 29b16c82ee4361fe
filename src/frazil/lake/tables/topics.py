"""The topics known from a catalog alone: whose rows each table holds, up to which offset, and in which columns.

A topic `/shop/orders` without partitions and the partition `/shop/orders-part-0` have the same rows of the same table,
so both names find them. In listings, a table with more than number 0 is a topic with partitions.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from frazil.core.errors import InvalidName, LakeUnavailable, TableRefused, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalogs.error_text import reason
from frazil.lake.catalogs.opening import catalog_exists, open_catalog
from frazil.lake.catalogs.table_names import table_names
from frazil.lake.files.store_errors import is_of_store
from frazil.lake.read.history import TableHistory
from frazil.lake.read.offset_files import plan_all
from frazil.lake.tables.field_ids import named
from frazil.lake.tables.schema import PARTITION, TableName, table_of
from frazil.lake.tables.token import followed, gaps, is_transformed, logs, read_token

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class TableTopic:
    """One topic as its table has it at one time. `own` is None for a message topic, `stored` is the
    schema of its rows."""

    topic: TopicName
    table: TableName
    log_id: str
    end: int
    own: pa.Schema | None
    stored: pa.Schema
    snapshot_id: int | None
    committed_ms: int | None


class TableTopics:
    """The catalog is opened on first use, and again after a failure: a follower outlives an outage."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._catalog: Catalog | None = None

    def names(self) -> list[TopicName]:
        """Return all topics with rows in a table, sorted. Each table is loaded once."""
        catalog = self._opened()
        if catalog is None:
            return []
        found: set[TopicName] = set()
        for name in self._tables(catalog):
            table = self._load(catalog, name, listed=True)
            if table is not None and not is_transformed(table):
                found.update(_topics_in(name, table))
        return sorted(found)

    def find(self, topic: TopicName, log_id: str | None = None) -> TableTopic:
        """Return the topic as it is now, or raise why it cannot be read. A requested log must be the current one."""
        name, partition = table_of(topic)
        table = self._found(topic, name)
        if is_transformed(table):
            raise TableRefused(
                f"{name} holds what a statement made of {topic}, not its rows; query it with `frazil sql`, or read the"
                " topic where its log is",
                table=str(name),
                topic=str(topic),
            )
        held = [each for each, its in logs(table).items() if its == partition]
        if not held and not logs(table):
            why = "is no table of Frazil: no commit of it says which log its rows are of"
            raise TableRefused(f"{name} {why}; give the name of a topic", table=str(name), topic=str(topic))
        if not held:
            known = ", ".join(str(each) for each in _topics_in(name, table))
            raise TopicNotFound(str(topic), f"{name} has none of its rows; it has those of {known}")
        if len(held) > 1 or (log_id is not None and log_id not in [*held, *followed(table, held[0])]):
            raise TableRefused(
                f"{name} holds another log of {topic} now ({', '.join(held)}); open the topic again to read that one",
                table=str(name),
                topic=str(topic),
                log_id=held[0],
            )
        return _described(topic, name, table, held[0])

    def history(self, found: TableTopic) -> TableHistory:
        catalog = self._opened()
        assert catalog is not None
        return TableHistory(catalog, found.topic, found.log_id, self._settings.reader)

    def size_bytes(self, found: TableTopic) -> tuple[OffsetRange | None, list[OffsetRange], int]:
        """Return the table's offsets, the accepted gaps in them, and the size of its files."""
        held = self.history(found).look()
        if held is None:
            return None, [], 0
        table, end = held
        try:
            files = plan_all(table, table_of(found.topic)[1])
        except Exception as error:
            raise self._away(found.table, error) from error
        size = sum(file.task.file.file_size_in_bytes for file in files)
        span = OffsetRange(min(file.low for file in files), end) if files else None
        return span, gaps(table, found.log_id), size

    # --- the catalog

    def _opened(self) -> Catalog | None:
        """Return None if an embedded catalog does not exist: a reader does not create it."""
        with self._guard:
            if self._catalog is None and catalog_exists(self._settings):
                self._catalog = open_catalog(self._settings)
            return self._catalog

    def _found(self, topic: TopicName, name: TableName) -> Table:
        catalog = self._opened()
        table = None if catalog is None else self._load(catalog, name)
        if table is None:
            raise TopicNotFound(str(topic), f"the catalog has no table {name}; rows appear once they were moved")
        return table

    def _tables(self, catalog: Catalog) -> list[TableName]:
        try:
            found = table_names(catalog)
        except Exception as error:
            raise self._away("its tables", error) from error
        return [name for name in found if _may_be_a_topic(name)]

    def _load(self, catalog: Catalog, name: TableName, *, listed: bool = False) -> Table | None:
        try:
            return named(catalog.load_table(name.identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except TableRefused as error:
            if not listed:
                raise
            _log.warning("%s is left out: %s", name, error)
            return None
        except Exception as error:
            if listed and is_of_store(error):  # a table without its metadata must not hide all others
                _log.warning("%s is left out: %s", name, reason(error, catalog.properties))
                return None
            raise self._away(name, error) from error

    def _away(self, what: object, error: Exception) -> LakeUnavailable:
        known = {} if self._catalog is None else self._catalog.properties
        return LakeUnavailable("catalog", f"{what} could not be loaded: {reason(error, known)}")


def _described(topic: TopicName, name: TableName, table: Table, log_id: str) -> TableTopic:
    token, snapshot = read_token(table, log_id), table.current_snapshot()
    own = own_columns(table)
    return TableTopic(
        topic,
        name,
        log_id,
        0 if token is None else token.end,
        own,
        stored_columns(table),
        None if snapshot is None else snapshot.snapshot_id,
        None if snapshot is None else snapshot.timestamp_ms,
    )


def own_columns(table: Table) -> pa.Schema | None:
    """Return the columns of a typed topic, as Iceberg has them; None for messages, which always have a payload."""
    if "_payload" in table.schema().column_names:
        return None
    return pa.schema([field for field in _arrow_fields(table) if not field.name.startswith("_")])


def stored_columns(table: Table) -> pa.Schema:
    """Return the columns of the topic's rows, as far as the table knows them."""
    if own_columns(table) is None:
        return ENVELOPE
    ours = (OFFSET.name, PARTITION.name)
    return pa.schema([field for field in _arrow_fields(table) if field.name not in ours])


def _arrow_fields(table: Table) -> list[pa.Field]:
    found = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return [pa.field(field.name, _plain(field.type), field.nullable) for field in found]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Convert text, bytes and lists from the large types that PyIceberg reads, which small batches do not need."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(at)) for at in range(kind.num_fields)])
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type), field.nullable)


def _topics_in(name: TableName, table: Table) -> list[TopicName]:
    numbers = sorted(set(logs(table).values()))
    if numbers == [0]:
        return [TopicName(name.namespace, name.table)]
    return [TopicName(name.namespace, f"{name.table}-part-{number}") for number in numbers]


def _may_be_a_topic(name: TableName) -> bool:
    try:
        TopicName.parse(f"/{name.namespace}/{name.table}")
    except InvalidName:
        return False
    return True
