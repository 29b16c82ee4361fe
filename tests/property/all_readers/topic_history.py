"""One topic and what happens to it: rows are published, moved and removed, and others change the table."""

from __future__ import annotations

import contextlib
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, RemoveSchemasUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from random_columns import Table as TableKind
from random_columns import widened

import frazil
from frazil.core.settings import RetentionSettings, Settings, make_settings
from frazil.core.stored_objects import held_from
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import TableName, table_of
from frazil.lake.tables.token import ends
from frazil.meta.opening import META_FILE
from frazil.meta.sqlite import SqliteStore
from frazil.objects.manifests import Manifests
from parts.in_process import MoverHere
from parts.moving import Floor
from parts.owner_uploads import OwnerUploads
from parts.table_rewrites import expire, remove_unneeded_files, rewrite

TOPIC = "/shop/orders"
TABLE = TableName("shop", "orders")
CONFIG = "frazil.yaml"
"""Beside the data folder: what another process, as Spark's, must be told of the lake."""
KEYS = st.none() | st.sampled_from([b"a", b"", b"\xff"])

LOG_STEPS = ["publish", "publish", "move", "move", "empty", "widen", "again"]
OBJECT_STEPS = ["upload", "upload", "upload", "empty", "remove objects", "wipe manifests"]
TABLE_STEPS = ["rewrite", "expire", "add", "rename", "rename", "swap", "repartition", "forget"]
LOSING_STEPS = ["delete", "roll back", "accept", "accept"]


class History:
    """`do` takes a step by its name. Steps that make no sense at the moment do nothing."""

    def __init__(
        self,
        settings: Settings,
        storage: frazil.Storage,
        floor: Floor,
        kind: TableKind,
        uploads: OwnerUploads,
    ) -> None:
        self.settings = settings
        self.uploads = uploads
        self.storage = storage
        self.floor = floor
        self.schema = kind.schema
        self._columns = kind.columns
        self.names = [TOPIC] if kind.partitions == 1 else [f"{TOPIC}-part-{at}" for at in range(kind.partitions)]
        self._here = MoverHere(settings, storage)
        self.ids: dict[int, str] = {}
        """The topic's columns by their field ids, as the mover made them."""
        self._changes = 0
        self._create()

    def _create(self) -> None:
        for name in self.names:
            self.storage.create_topic(name, schema=self.schema)

    def topic(self, name: str) -> frazil.Topic:
        return self.storage.topic(name, create=False)

    def table(self) -> Table | None:
        catalog = self._here.catalog
        return catalog.load_table(TABLE.identifier) if catalog.table_exists(TABLE.identifier) else None

    def is_of_the_topic(self) -> bool:
        """Whether there is a table of the present logs, not of an earlier topic of that name."""
        table = self.table()
        return table is not None and any(self.topic(name).log.log_id in ends(table) for name in self.names)

    def column(self, table: Table, name: str) -> str:
        """What the table calls a column of the topic."""
        return next(
            (field.name for field in table.schema().fields if self.ids.get(field.field_id) == name),
            name,
        )

    def do(self, step: str, data: st.DataObject) -> None:
        table = self.table()
        self._changes += 1
        match step:
            case "publish":
                self._publish(data)
            case "move":
                self._move()
            case "empty":
                self._empty_logs()
            case "upload":
                for name in self.names:
                    self.uploads.upload(self.topic(name).log, objects_max=data.draw(st.none() | st.just(1)))
            case "remove objects":
                held = {} if table is None else ends(table)
                for name in self.names:
                    log = self.topic(name).log
                    self.uploads.remove_below(log, held.get(log.log_id, 0))
            case "wipe manifests":
                for name in self.names:
                    assert self.uploads.known.manifests is not None
                    self.uploads.known.manifests.remove_log(self.topic(name).log.log_id)
            case "widen" if self.schema is not None:
                self.schema = widened(self.schema, self._changes)
                for name in self.names:
                    self.storage.change_schema(name, self.schema)
            case "again":
                for name in self.names:
                    self.storage.delete_topic(name)
                self._create()
                self.ids = {}
            case _ if table is not None and table.current_snapshot() is not None:
                self._change_table(step, table, data)

    # --- the topic

    def _publish(self, data: st.DataObject) -> None:
        for name in self.names:
            count = data.draw(st.integers(1, 4))
            self.topic(name).publish_many(self._some(data, count))

    def _some(self, data: st.DataObject, count: int) -> pa.RecordBatch:
        if self.schema is None:
            rows = st.fixed_dictionaries({"_payload": st.binary(max_size=5), "_key": KEYS})
            return pa.RecordBatch.from_pylist(data.draw(st.lists(rows, min_size=count, max_size=count)))
        known = {column.name: column.values for column in self._columns}
        values = st.fixed_dictionaries({name: known.get(name, st.just([{"x y": 1}])) for name in self.schema.names})
        rows = data.draw(st.lists(values, min_size=count, max_size=count))
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def _move(self) -> None:
        self._here.mover.forget()
        errors = [error for error in self._here.errors().values() if error is not None]
        assert not any("could not be written" in error for error in errors), errors
        if (table := self.table()) is not None and not errors:
            for field in table.schema().fields:
                if not field.name.startswith(("added ", "renamed ")):
                    self.ids.setdefault(field.field_id, field.name)

    def _empty_logs(self) -> None:
        """Retention takes what the table or the objects have."""
        floor = self.floor
        table = self.table()
        floor.ends = {} if table is None else dict(ends(table))
        for name in self.names:
            log = self.topic(name).log
            floor.ends[log.log_id] = max(floor.ends.get(log.log_id, 0), self.uploads.end(log))
        for name in self.names:
            self.storage.set_retention(name, RetentionSettings(age_ms=1))
        self.storage.maintain()
        for name in self.names:
            self.storage.set_retention(name, RetentionSettings())

    # --- the table, as another engine or a person changes it

    def _change_table(self, step: str, table: Table, data: st.DataObject) -> None:
        offset = _offset_column(table)
        match step:
            case "delete":
                self._empty_logs()
                table.delete(f"{offset} = {data.draw(st.integers(0, 6))}")
            case "rewrite":
                low = data.draw(st.integers(0, 3))
                rewrite(table, f"{offset} >= {low}", data.draw(st.integers(0, 99)), data.draw(st.integers(0, 3)))
            case "expire":
                expire(table, data.draw(st.integers(1, 2)))
                remove_unneeded_files(table)
            case "add":
                with table.update_schema() as update:
                    update.add_column(f"added {self._changes}", table.schema().find_type(offset))
            case "rename" | "swap":
                self._rename(table, data, swap=step == "swap")
            case "repartition":
                self._repartition(table)
            case "forget":
                current = table.metadata.current_schema_id
                gone = [one.schema_id for one in table.metadata.schemas if one.schema_id != current]
                if gone:
                    self._commit(table, RemoveSchemasUpdate(schema_ids=gone))
            case "accept":
                for name in self.names:
                    with contextlib.suppress(frazil.FrazilError):
                        log = self.topic(name).log
                        first = held_from(log.first_offset, self.uploads.of(log).load().all())
                        number, move_id = table_of(log.name)[1], str(uuid.uuid4())
                        accept(
                            self._here.catalog,
                            TABLE,
                            log.log_id,
                            first,
                            move_id,
                            log.schema,
                            partition=number,
                        )
            case "roll back":
                to = table.metadata.snapshots[-1 - data.draw(st.integers(0, 5)) % len(table.metadata.snapshots)]
                self._commit(table, SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=to.snapshot_id))

    def _rename(self, table: Table, data: st.DataObject, *, swap: bool) -> None:
        """A column or a member of one gets another name, or two columns of one type exchange theirs."""
        if not swap:
            path = data.draw(st.sampled_from(list(_paths(table.schema().as_struct()))))
            with table.update_schema() as update:
                update.rename_column(
                    path, f"renamed {self._changes}" if path[-1] != "_offset" else f"at{self._changes}"
                )
            return
        taken = {field.name for spec in table.specs().values() for field in spec.fields}
        """A column cannot get the name of a partition field of another one."""
        fields = [
            field for field in table.schema().fields if not field.name.startswith("_") and field.name not in taken
        ]
        pairs = [(one.name, two.name) for one in fields for two in fields if one.name < two.name]
        if pairs:
            one, two = data.draw(st.sampled_from(pairs))
            for old, new in (((one,), "x!"), ((two,), one), (("x!",), two)):
                with self._here.table(TOPIC).update_schema() as update:
                    update.rename_column(old, new)

    def _repartition(self, table: Table) -> None:
        added = [field.name for field in table.spec().fields if field.name.startswith("by ")]
        with table.update_spec() as update:
            if added:
                update.remove_field(added[0])
            else:
                how = BucketTransform(3) if self._changes % 2 else TruncateTransform(2)
                update.add_field(_offset_column(table), how, f"by {self._changes}")

    def _commit(self, table: Table, update: Any) -> None:
        self._here.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (update,))


def _offset_column(table: Table) -> str:
    """What the table calls `_offset`, whichever topic's table it is: the mover makes it the first field."""
    return table.schema().find_field(1).name


def _paths(kind: IcebergType, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every column and member that has a name of its own."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            yield (*above, field.name)
            yield from _paths(field.field_type, (*above, field.name))
    elif isinstance(kind, ListType):
        yield from _paths(kind.element_type, (*above, "element"))
    elif isinstance(kind, MapType):
        yield from _paths(kind.value_type, (*above, "value"))


@contextlib.contextmanager
def history_of(kind: TableKind, data: str = "da[t]a", catalog: str = "frazil") -> Iterator[History]:
    with tempfile.TemporaryDirectory() as folder:
        own = {} if kind.partitioning is None else {TOPIC: {"partitioning": list(kind.partitioning)}}
        wal = {"max_file_size": 64 * 1024, "cache_capacity": 0}
        objects = {"enabled": True, "store": {"type": "memory", "bucket": folder}}
        shared = {"catalog": {"name": catalog}, "objects": objects}
        (Path(folder) / CONFIG).write_text(json.dumps(shared), encoding="utf-8")
        ours = make_settings({"data": Path(folder) / data, "wal": wal, "topics": own, **shared})
        floor = Floor()
        with contextlib.closing(SqliteStore(Path(folder) / data / META_FILE)) as meta:
            uploads = OwnerUploads(ours, Manifests(meta))
            with uploads.open(floor) as storage:
                yield History(ours, storage, floor, kind, uploads)
