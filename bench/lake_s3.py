"""The lake on a REST catalog and an S3 server, beside local files and bare reads of the same objects: `lake.py --s3`.

The servers are the real parts of the tests, on this machine: Nessie and versitygw. They share its processors with what
is measured, so the figures are lower bounds of what a store elsewhere allows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs
import pyarrow.parquet as pq

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.log.info import log_info
from lake import HERE, MESSAGE_BYTES, MIB, child, fill, freshness
from measure import Figure, in_turns, seconds
from table_only import make_cold, move_all

sys.path.insert(0, str(HERE.parent / "tests"))  # the servers are parts of the tests

from parts.nessie import WAREHOUSE, nessie
from parts.s3 import ACCESS_KEY, REGION, S3, SECRET_KEY, s3_server

RANGE_BYTES = 8 * MIB
FILE_BYTES = 64 * MIB


@dataclass(frozen=True)
class Lake:
    store: S3
    sections: dict[str, Any]
    """`catalog` and `object_store`, as a settings file has them."""

    def settings(self, data: Path, **more: Any) -> Settings:
        return make_settings({"data": data, **self.sections, **more})

    def environment(self) -> dict[str, str]:
        return {
            f"FRAZIL_{section.upper()}__{name.upper()}": str(value)
            for section, values in self.sections.items()
            for name, value in values.items()
        }

    def files(self, keys: Sequence[str]) -> list[str]:
        """Where the server keeps the objects."""
        return [str(self.store.folder / key) for key in keys]

    def access(self) -> pyarrow.fs.S3FileSystem:
        return pyarrow.fs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, endpoint_override=self.store.endpoint
        )


@contextlib.contextmanager
def rest_and_s3(where: Path) -> Iterator[Lake]:
    with s3_server(where / "s3") as store, nessie(store, where / "nessie") as catalog:
        sections = {"catalog": {"type": "rest", "uri": catalog.uri}, "object_store": store.settings(WAREHOUSE)}
        yield Lake(store, sections)


def moving(where: Path, lake: Lake, rows: int = 2_000_000, rounds: int = 3) -> list[Figure]:
    """The same log moved to local files and to S3, in turns; both have moved some before it counts."""
    with frazil.open(where / "log") as storage:
        fill(storage.topic("/bench/all"), rows)
        size_bytes = log_info(storage, "/bench/all").size_bytes
    log = {"wal": {"base_path": str(where / "log" / "log")}}
    rates: dict[str, list[float]] = {"local": [], "s3": []}
    with child(str(HERE / "lake_child.py")) as mover:
        for turn in range(rounds + 1):
            for place, sections in (("local", {}), ("s3", lake.sections)):
                data = where / place
                shutil.rmtree(data, ignore_errors=True)
                moved = mover.ask(do="move", data=str(data), settings={**log, **sections})
                assert moved["rows"] == rows
                if turn:  # the first warms both
                    rates[place].append(rows / moved["seconds"])
            open_catalog(lake.settings(where / "s3")).drop_table(("bench", "all"))
            shutil.rmtree(lake.store.folder / WAREHOUSE / "bench", ignore_errors=True)
    mine, local = statistics.median(rates["s3"]), statistics.median(rates["local"])
    mb = size_bytes / rows * mine / 1e6
    name = f"moving {rows:,} messages of {MESSAGE_BYTES} B to S3 ({mb:,.0f} MB/s of log), beside local files"
    return [Figure(name, f"{mine:,.0f}/s", f"{local:,.0f}/s", mine / local, "≥ 0.7", mine >= 0.7 * local)]


def fresh(where: Path, lake: Lake, period_s: float = 60.0, per_second: int = 1_000) -> list[Figure]:
    settings = lake.settings(where / "data", writer={"flush_interval_ms": 500}, flight={"port": 0})
    return freshness(settings, lake.environment(), period_s, per_second, {0.5: 1.5}, "on REST and S3 ")


def cold_read(where: Path, lake: Lake, rows: int = 2_000_000, rounds: int = 5) -> list[Figure]:
    """A topic whose rows are only in its table, beside bare reads of the same objects with as many threads."""
    settings = lake.settings(where / "data")
    with frazil.open(settings) as storage:
        topic = storage.topic("/bench/cold")
        fill(topic, rows)
        keys = [_key(path) for path in move_all(settings, storage, topic, FILE_BYTES)]
    threads, files = settings.reader.max_concurrent_reads, lake.access()
    with frazil.open(settings) as storage, ThreadPoolExecutor(threads) as pool:
        topic = storage.topic("/bench/cold", create=False)
        sizes = {key: files.get_file_info(key).size for key in keys}
        taken = in_turns(
            lambda: make_cold(lake.files(keys)),
            {
                "frazil": lambda: seconds(lambda: _drained(topic.read_batches(), rows)),
                "parquet": lambda: seconds(lambda: list(pool.map(lambda key: _decoded(files, key), keys))),
                "bytes": lambda: seconds(lambda: list(pool.map(lambda one: _got(files, *one), _ranges(sizes)))),
            },
            rounds,
        )
    medians = {name: statistics.median(values) for name, values in taken.items()}
    mb = sum(sizes.values()) / 1e6
    title = f"cold read from S3, {rows:,} messages of {MESSAGE_BYTES} B in {len(keys)} objects, {threads} reads at once"
    return [
        Figure(
            f"{title}, beside {peer}",
            f"{mb / medians['frazil']:,.0f} MB/s",
            f"{mb / medians[key]:,.0f} MB/s",
            medians[key] / medians["frazil"],
            wanted,
            wanted == "-" or medians[key] >= 0.7 * medians["frazil"],
        )
        for key, peer, wanted in (
            ("parquet", "PyArrow's ranged reads, decoded", "≥ 0.7"),
            ("bytes", f"ranged reads of {RANGE_BYTES // MIB} MiB, as bytes", "-"),
        )
    ]


def _key(path: str) -> str:
    parts = urlsplit(path)
    return f"{parts.netloc}{parts.path}"


def _drained(batches: Any, rows: int) -> None:
    assert sum(batch.num_rows for batch in batches) == rows


def _decoded(files: pyarrow.fs.S3FileSystem, key: str) -> int:
    with files.open_input_file(key) as source:
        return sum(batch.num_rows for batch in pq.ParquetFile(source, pre_buffer=True).iter_batches())


def _ranges(sizes: dict[str, int]) -> list[tuple[str, int, int]]:
    return [(key, at, min(RANGE_BYTES, size - at)) for key, size in sizes.items() for at in range(0, size, RANGE_BYTES)]


def _got(files: pyarrow.fs.S3FileSystem, key: str, at: int, length: int) -> int:
    with files.open_input_file(key) as source:
        return len(source.read_at(length, at))


PARTS: dict[str, Callable[[Path, Lake, int], list[Figure]]] = {
    "moving": lambda where, lake, share: moving(where, lake, 2_000_000 // share, max(1, 3 // share)),
    "freshness": lambda where, lake, share: fresh(where, lake, 60.0 / share),
    "cold": lambda where, lake, share: cold_read(where, lake, 2_000_000 // share, max(1, 5 // share)),
}


def measured(part: str, where: Path, share: int) -> list[Figure]:
    """Each part has servers of its own: what another left behind is not its burden."""
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # PyArrow would ask for a region
    with rest_and_s3(where / "servers") as lake:
        return PARTS[part](where, lake, share)
