"""One lake under test: a catalog, one table of its own, and writers that move rows into it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
from pyarrow.fs import FileSelector
from pyiceberg.table import Table

from frazil.core.rows import ENVELOPE, OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.commit.commit import Committed, Moved
from frazil.lake.files.writer import write_data_files
from frazil.lake.tables.schema import TableName, table_rows
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import Token, read_token
from parts.meddling import Meddling

__all__ = ["Lake", "Meddling"]

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Lake:
    """Two writers are two of these with the same `name` and `log_id`."""

    def __init__(self, kind: str, settings: Settings, name: TableName | None = None, log_id: str | None = None) -> None:
        self.kind = kind
        self.settings = settings
        self.name = name or TableName(f"ns_{uuid.uuid4().hex[:12]}", "orders")
        self.log_id = log_id or str(uuid.uuid4())
        self.catalog: Any = open_catalog(settings)
        self.snapshots_max = 100
        self.waits: list[int] = []
        self.on_wait: Callable[[int], None] = self.waits.append

    def store(self) -> TableStore:
        properties = dict(self.catalog.properties)
        store = TableStore(self.catalog, properties.get("warehouse"), properties, self.snapshots_max)
        store.ensure(self.name, ENVELOPE)
        return store

    def table(self) -> Table:
        found: Table = self.catalog.load_table(self.name.identifier)
        return found

    def token(self, log_id: str | None = None) -> Token | None:
        return read_token(self.table(), log_id or self.log_id)

    def written(self, start: int, end: int, log_id: str | None = None) -> Moved:
        """Files with these rows, in no table yet; no files for a range that has no rows left."""
        store = self.store()
        partition = 0 if log_id in (None, self.log_id) else 1
        rows = pa.Table.from_batches([table_rows(_rows(start, end), partition)])
        files = write_data_files(store.metadata_json(self.name), store.io_properties(self.name), rows, uuid.uuid4())
        return Moved(log_id or self.log_id, start, end, tuple(files), end - start, "00000000", partition)

    def commit(self, *moves: Moved, move_id: str | None = None) -> Committed:
        return self.store().commit(self.name, moves, move_id or str(uuid.uuid4()), self.on_wait)

    def move(self, start: int, end: int) -> Committed:
        return self.commit(self.written(start, end))

    def exists(self, moved: Moved) -> bool:
        io = self.table().io
        return all(io.new_input(file.file_path).exists() for file in moved.files)

    def metadata_files(self, kind: str = ".json") -> list[str]:
        """The versions of the table's metadata that lie in its folder, or its manifests and their lists."""
        scheme, _, place = self.table().location().partition("://")
        files = self.table().io.fs_by_scheme(scheme, place.split("/")[0])
        return [info.path for info in files.get_file_info(FileSelector(f"{place}/metadata")) if kind in info.path]

    def offsets(self) -> list[int]:
        """Every offset that the table holds, read twice: by PyIceberg, and by DuckDB over the planned files."""
        table = self.table()
        found = sorted(table.scan(selected_fields=("_offset", "_payload")).to_arrow().column("_offset").to_pylist())
        assert sorted(_by_duckdb(self.settings, table)) == found
        return found


def _rows(start: int, end: int) -> pa.RecordBatch:
    stored = [
        {"_append_time": TIME, "_publish_time": TIME, "_key": None, "_attributes": [("a", "b")], "_payload": b"tea"}
        for _ in range(start, end)
    ]
    batch = pa.RecordBatch.from_pylist(stored, schema=ENVELOPE)
    return batch.add_column(0, OFFSET, pa.array(range(start, end), pa.int64()))


def _by_duckdb(settings: Settings, table: Table) -> list[int]:
    files = [task.file.file_path for task in table.scan().plan_files()]
    if not files:
        return []
    with duckdb.connect() as duck:
        store = settings.object_store
        if store.endpoint:
            assert store.access_key_id
            assert store.secret_access_key
            files_of_s3 = fsspec.filesystem(
                "s3",
                key=store.access_key_id.get_secret_value(),
                secret=store.secret_access_key.get_secret_value(),
                endpoint_url=store.endpoint,
                client_kwargs={"region_name": store.region},
            )
            duck.register_filesystem(files_of_s3)
        rows = duck.execute(
            "SELECT _offset FROM read_parquet(?, union_by_name = true)",
            [[file.removeprefix("file://") for file in files]],
        ).fetchall()
    return [row[0] for row in rows]
