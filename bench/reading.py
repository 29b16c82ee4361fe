"""Reading tables beside PyArrow and DuckDB on the same files, and the memory of a reader: `make bench`.

What is compared takes turns in one run, so that a noisy neighbour meets both. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import frazil
from frazil.core.names import TopicName
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.schema import table_of
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from lake import BATCH, MESSAGE_BYTES, MIB, fill, messages
from measure import Figure, Measure, folder, in_turns, report, seconds
from table_only import make_cold, move_all

HERE = Path(__file__).resolve().parent
ROUNDS = 5
FILE_BYTES = 64 * MIB


def measured_in_turns(
    paths: Sequence[str], measures: dict[str, Measure], *, cold: bool = True
) -> dict[str, list[float]]:
    return in_turns(lambda: make_cold(paths) if cold else None, measures, ROUNDS)


def drained(batches: Iterable[pa.RecordBatch], rows: int) -> None:
    assert sum(batch.num_rows for batch in batches) == rows


def cold_read(where: Path, rows: int) -> list[Figure]:
    """A topic whose rows are only in its table, beside PyArrow on the bare files; and its first batch."""
    settings = make_settings({"data": where / "data"})
    name = "/bench/cold"
    with frazil.open(settings) as storage:
        topic = storage.topic(name)
        fill(topic, rows)
        paths = move_all(settings, storage, topic, FILE_BYTES)
    with frazil.open(settings) as storage:
        topic = storage.topic(name, create=False)
        taken = measured_in_turns(
            paths,
            {
                "frazil": lambda: seconds(lambda: drained(topic.read_batches(), rows)),
                "files": lambda: seconds(
                    lambda: drained((batch for path in paths for batch in pq.ParquetFile(path).iter_batches()), rows)
                ),
                "dataset": lambda: seconds(lambda: drained(ds.dataset(paths).to_batches(), rows)),
            },
        )
    rates = {each: rows / statistics.median(values) for each, values in taken.items()}
    mine = rates.pop("frazil")
    peer = max(rates, key=rates.__getitem__)
    ratio = mine / rates[peer]
    mb = sum(os.path.getsize(path) for path in paths) / rows * mine / 1e6
    named = {"files": "ParquetFile.iter_batches", "dataset": "pyarrow.dataset"}[peer]
    title = f"cold read, {rows:,} messages of {MESSAGE_BYTES} B ({mb:,.0f} MB/s of Parquet), beside {named}"
    figure = Figure(title, f"{mine:,.0f}/s", f"{rates[peer]:,.0f}/s", ratio, "≥ 0.7", ratio >= 0.7)
    return [figure, _first_batch(settings, name, paths)]


def _first_batch(settings: Settings, name: str, paths: Sequence[str]) -> Figure:
    table = table_of(TopicName.parse(name))[0]

    def load() -> None:
        open_catalog(settings).load_table(table.identifier)

    def first() -> float:
        with frazil.open(settings) as storage:
            topic = storage.topic(name, create=False)
            started = time.perf_counter()
            reader = topic.read_batches()
            assert next(reader).num_rows
            taken = time.perf_counter() - started
            reader.close()
            return taken

    taken = measured_in_turns(paths, {"load": lambda: seconds(load), "first": first})
    beyond_ms = 1e3 * (statistics.median(taken["first"]) - statistics.median(taken["load"]))
    title = f"first batch, beyond opening the catalog and loading the table ({1e3 * min(taken['load']):.0f} ms)"
    return Figure(title, f"{beyond_ms:,.0f} ms", "200 ms", beyond_ms / 200, "≤ 1", beyond_ms <= 200)


def counting(where: Path, rows: int) -> list[Figure]:
    """`frazil sql` beside DuckDB on the same files. Both connect anew each time; the files are warm."""
    settings = make_settings({"data": where / "data"})
    schema = pa.schema([("user", pa.int64()), ("kind", pa.string()), ("amount", pa.float64())])
    rng = random.Random(7)
    some = pa.RecordBatch.from_pylist(
        [
            {"user": rng.getrandbits(40), "kind": rng.choice(("view", "cart", "buy")), "amount": rng.random()}
            for _ in range(10 * BATCH)
        ],
        schema=schema,
    )
    with frazil.open(settings) as storage:
        topic = storage.topic("/bench/counted", schema=schema)
        for start in range(0, rows, some.num_rows):
            topic.publish_many(some.slice(0, rows - start))
        paths = move_all(settings, storage, topic, FILE_BYTES)
    files = ", ".join(f"'{path}'" for path in paths)

    def ours(condition: str) -> int:
        with SqlSession(settings, FileView(settings)) as session:
            answer = session.run(f"SELECT count(*) AS n FROM bench.counted {condition}")
            return int(next(answer.batches).column(0)[0].as_py())

    def theirs(condition: str) -> int:
        with duckdb.connect() as duck:
            found = duck.execute(f"SELECT count(*) FROM read_parquet([{files}]) {condition}").fetchone()
            assert found is not None
            return int(found[0])

    figures = []
    for condition in ("", "WHERE amount < 0.25 AND kind = 'buy'"):
        assert ours(condition) == theirs(condition)
        measures = {each.__name__: _counted(each, condition) for each in (ours, theirs)}
        taken = measured_in_turns(paths, measures, cold=False)
        mine, peer = statistics.median(taken["ours"]), statistics.median(taken["theirs"])
        title = f"frazil sql, count(*) of {rows:,} rows {condition or 'in all'}, beside DuckDB".replace("  ", " ")
        figures.append(
            Figure(title, f"{mine * 1e3:,.0f} ms", f"{peer * 1e3:,.0f} ms", mine / peer, "≤ 1.5", mine <= 1.5 * peer)
        )
    return figures


def _counted(count: Callable[[str], int], condition: str) -> Measure:
    return lambda: seconds(lambda: count(condition))


def memory(where: Path, prefetch: int = 2, times: int = 20) -> list[Figure]:
    """A reader of its own process over twenty times what it may read ahead, in the last third beside the first."""
    settings = make_settings({"data": where / "data"})
    file_bytes = 16 * MIB
    with frazil.open(settings) as storage:
        topic = storage.topic("/bench/much")
        some, size = pa.array(messages(BATCH, 3)), 0
        while size < times * prefetch * file_bytes:
            topic.publish_many(some.to_pylist())
            size += some.nbytes
        rows = topic.stats().end
        move_all(settings, storage, topic, file_bytes)
    command = [sys.executable, str(HERE / "reading_child.py"), str(settings.data), "/bench/much", str(prefetch)]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert answer["rows"] == rows
    samples = answer["samples"]
    third = len(samples) // 3
    early, late = max(samples[:third]) / MIB, max(samples[-third:]) / MIB
    title = f"memory of a reader, {size / MIB:,.0f} MiB, {prefetch} files of {file_bytes // MIB} MiB read ahead"
    return [Figure(title, f"{late:,.0f} MiB", f"{early:,.0f} MiB", late / early, "≤ 1.2", late <= 1.2 * early)]


PARTS: dict[str, Callable[[Path, int], list[Figure]]] = {
    "cold": lambda where, share: cold_read(where, 2_000_000 // share),
    "sql": lambda where, share: counting(where, 10_000_000 // share),
    "memory": lambda where, share: memory(where, times=max(3, 20 // share)),
}


def measured(part: str, share: int, *, alone: bool) -> list[Figure]:
    """Each part in a process of its own, as `frazil sql` is: what another left behind is not its burden."""
    if alone:
        with folder() as where:
            return PARTS[part](where.absolute(), share)
    command = [sys.executable, str(HERE / "reading.py"), part, "--json", "--share", str(share)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return [Figure(**figure) for figure in json.loads(answer)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all if none")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--share", type=int, default=1, help="only one N-th of the rows, for a first look")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    for part in arguments.parts or PARTS:
        figures += measured(part, arguments.share, alone=len(arguments.parts) == 1)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(figure) for figure in figures]) + "\n")
    else:
        report("Reading", figures)


if __name__ == "__main__":
    main()
