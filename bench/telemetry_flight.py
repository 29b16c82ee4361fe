"""Record batches of a stock Flight client into a table of a tenant, beside appends of the same rows to the log.

Every answer comes after an fdatasync. The client sends slices that the door takes, and the log gets batches of 4 MiB.
Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight

import frazil
from broker import frazil_serve
from measure import BareFile, Figure, folder, report

MIB = 1024 * 1024
BATCH_ROWS, ROW_BYTES = 4080, 1024
EACH, ROUNDS = 8, 8
SHARE_MIN = 0.7
OPTIONS = pa.flight.FlightCallOptions(headers=[(b"x-frazil-tenant", b"bench")])
TABLE = pa.flight.FlightDescriptor.for_path("default", "rows")


class TableWriter:
    """One stream into the table; answers are read in another thread, as the guide says."""

    def __init__(self, client: pa.flight.FlightClient, schema: pa.Schema) -> None:
        self._writer, self._answers = client.do_put(TABLE, schema, OPTIONS)
        self._stored = 0
        self._moved = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def write(self, slices: list[pa.RecordBatch]) -> None:
        """Send the slices EACH times, and wait until all are durable."""
        wanted = self._stored + EACH * sum(one.num_rows for one in slices)
        for _ in range(EACH):
            for one in slices:
                self._writer.write_batch(one)
        with self._moved:
            if not self._moved.wait_for(lambda: self._stored >= wanted, 120):
                raise TimeoutError("rows were not acknowledged")

    def close(self) -> None:
        self._writer.done_writing()
        self._reader.join()
        self._writer.close()

    def _read(self) -> None:
        while (answer := self._answers.read()) is not None:
            with self._moved:
                self._stored += json.loads(answer.to_pybytes())["rows"]
                self._moved.notify()


def slices_of(batch: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    parts = -(-batch.nbytes // (bytes_max - 64 * 1024))
    rows = -(-batch.num_rows // parts)
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def beside_the_log(address: str, where: Path) -> list[Figure]:
    """In turns with the log and with the bare disk, so that noise meets all three."""
    rows = [os.urandom(ROW_BYTES) for _ in range(BATCH_ROWS)]
    batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], names=["payload"])
    size = len(batch.serialize())
    data, bare = os.urandom(size), BareFile(where / "bare", 512 * MIB)
    flight_s = log_s = bare_s = 0.0
    settings = frazil.Settings(data=where / "log", wal=frazil.WalSettings(cache_bytes=64 * MIB))
    with frazil.open(settings) as storage, pa.flight.connect(address) as client:
        topic = storage.topic("/bench/rows", schema=batch.schema)
        writer = TableWriter(client, batch.schema)
        slices = slices_of(batch, 2 * MIB)
        for turn in range(ROUNDS + 1):
            disk = sum(bare.write(data) for _ in range(EACH))
            started = time.perf_counter()
            for _ in range(EACH):
                topic.publish_many(batch)
            middle = time.perf_counter()
            writer.write(slices)
            ended = time.perf_counter()
            if turn:  # the first one warms up
                bare_s, log_s, flight_s = bare_s + disk, log_s + middle - started, flight_s + ended - middle
        writer.close()
    bare.close()
    total = ROUNDS * EACH * size / 1e6
    name = f"do_put of batches of 4 MiB in {len(slices)} slices, one stream"
    ratio = log_s / flight_s
    at = f"{total / flight_s:,.0f} MB/s"
    return [
        Figure(f"{name}, beside the log", at, f"{total / log_s:,.0f} MB/s", ratio, "≥ 0.70", ratio >= SHARE_MIN),
        Figure("the same, beside a bare write and fdatasync", at, f"{total / bare_s:,.0f} MB/s",
               bare_s / flight_s, "-", True),
    ]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with folder() as where, frazil_serve(where.absolute() / "data", "flight") as address:
        report("Tables of tenants by Flight", beside_the_log(address, where))


if __name__ == "__main__":
    main()
