"""Frazil's own client beside this machine's disk, and beside Redis Streams and NATS JetStream: `make bench`.

Every answer comes after an fdatasync, of the peers too. Loads are bounded in time. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight
import uvloop

import frazil
import frazil.aio
from broker import bare_grpc, frazil_serve
from frazil.core.put_notes import FewRow, few_note
from measure import BareFile, Figure, folder, percentile, report, us
from peers import CONNECTIONS, nats_rate, nats_server, rate, redis_rate, redis_server

MESSAGE = os.urandom(1024)
BATCH = 512
THREADS = 4
SECONDS = 4.0
OFFERED = 150_000


def one_at_a_time(remote: frazil.RemoteStorage, where: Path) -> list[Figure]:
    """In turns with the bare disk and with a bare echo by the same client library, so that noise meets all three."""
    topic, bare = remote.topic("/bench/one"), BareFile(where / "bare", 2**24)
    mine: list[float] = []
    disk: list[float] = []
    echoes: list[float] = []
    with echoing() as echo:
        for _ in range(200):
            topic.publish(MESSAGE)
            echo()
        for _ in range(10):
            mine += [timed(lambda: topic.publish(MESSAGE)) for _ in range(100)]
            disk += [bare.write(MESSAGE) for _ in range(100)]
            echoes += [timed(echo) for _ in range(100)]
    bare.close()
    half, sync, echoed = (percentile(times, 0.5) for times in (mine, disk, echoes))
    p99, limit = us(percentile(mine, 0.99)), sync + echoed
    least = f"an echo by bare grpc.aio, p50 {us(echoed)}, and a bare fdatasync, {us(sync)}"
    return [
        Figure(f"one message at a time, 1 KiB, p50 (p99 {p99})", us(half), "600 µs", half / 6e-4, "≤ 1", half <= 6e-4),
        Figure(f"one message at a time, p50, beside {least}", us(half), us(limit), half / limit, "-", True),
    ]


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextlib.contextmanager
def echoing() -> Iterator[Callable[[], None]]:
    """Sends a note of one message and waits until another thread has read the answer, as the client does."""
    with bare_grpc("bare_flight.py") as address, pa.flight.connect(address.strip()) as flight:
        descriptor = pa.flight.FlightDescriptor.for_command(b"{}")
        writer, answers = flight.do_put(descriptor, pa.schema([("_payload", pa.binary())]))
        answers.read()
        note, answered = pa.py_buffer(few_note(0, 0, [FewRow(MESSAGE, None, None)])), queue.SimpleQueue[None]()

        def read() -> None:
            while answers.read() is not None:
                answered.put(None)

        def echo() -> None:
            writer.write_metadata(note)
            answered.get()

        reader = threading.Thread(target=read)
        reader.start()
        yield echo
        writer.done_writing()
        reader.join()
        writer.close()


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([MESSAGE] * BATCH, pa.binary())], names=["_payload"])


def published(topic: frazil.RemoteTopic, threads: int, per_second: int | None) -> tuple[float, list[float]]:
    """Messages a second from so many threads, as fast as they can or paced; and how long each batch took.

    Paced, batches are due one after another, and a batch takes from then on: one that waits for its thread waits.
    """
    rows, taken = batch(), []
    started = time.perf_counter()
    pause = threading.Event()

    def run(number: int) -> None:
        while (now := time.perf_counter() - started) < SECONDS:
            due = now if per_second is None else number * BATCH / per_second
            if due > now:
                pause.wait(due - now)
            topic.publish_many(rows)
            taken.append(time.perf_counter() - started - due)
            number += threads

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return len(taken) * BATCH / (time.perf_counter() - started), taken


def written(bare: BareFile, per_second: int) -> list[float]:
    """The same batches at the same rate by a bare write and fdatasync: how long each took from when it was due."""
    data, taken, number = MESSAGE * BATCH, [], 0
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < SECONDS:
        due = number * BATCH / per_second
        time.sleep(max(0.0, due - now))
        bare.write(data)
        taken.append(time.perf_counter() - started - due)
        number += 1
    return taken


def batches(remote: frazil.RemoteStorage, where: Path) -> list[Figure]:
    topic = remote.topic("/bench/many")
    published(topic, THREADS, None)
    most, _ = published(topic, THREADS, None)
    bare = BareFile(where / "paced", 2**30)
    taken: list[float] = []
    disk: list[float] = []
    rates = []
    for _ in range(3):
        paced, times = published(topic, 2 * THREADS, OFFERED)
        rates.append(paced)
        taken += times
        disk += written(bare, OFFERED)
    bare.close()
    paced, p99, disk_p99 = min(rates), percentile(taken, 0.99), percentile(disk, 0.99)
    name = f"batches of {BATCH} x 1 KiB from {THREADS} threads of one process"
    at = f"p99 of an answer at {paced:,.0f}/s offered in the same batches"
    return [
        Figure(name, f"{most:,.0f}/s", f"{OFFERED:,}/s", most / OFFERED, "≥ 1", most >= OFFERED),
        Figure(at, us(p99), "20,000 µs", p99 / 0.02, "≤ 1", p99 <= 0.02 and paced > 0.95 * OFFERED),
        Figure("the same p99, beside a bare write and fdatasync", us(p99), us(disk_p99), p99 / disk_p99, "-", True),
    ]


def reading(remote: frazil.RemoteStorage) -> list[Figure]:
    topic = remote.topic("/bench/many")
    rates = []
    for _ in range(3):
        started, rows = time.perf_counter(), 0
        for found in topic.read_batches():
            rows += found.num_rows
            if rows >= 1_000_000:
                break
        rates.append(rows / (time.perf_counter() - started))
    half = percentile(rates, 0.5)
    return [Figure("reading, 1 KiB", f"{half:,.0f}/s", "300,000/s", half / 300_000, "≥ 1", half >= 300_000)]


async def beside_peers(flight: str, where: Path) -> list[Figure]:
    found: dict[str, list[float]] = {"frazil": [], "Redis Streams": [], "NATS JetStream": []}
    with redis_server(where / "redis") as redis, nats_server(where / "nats") as nats:
        async with await frazil.aio.connect(flight) as remote:
            topic = await remote.topic("/bench/peers")
            for _ in range(2):
                found["frazil"].append(await rate([topic.publish] * CONNECTIONS, MESSAGE, SECONDS))
                found["Redis Streams"].append(await redis_rate(redis, MESSAGE, SECONDS))
                found["NATS JetStream"].append(await nats_rate(nats, MESSAGE, SECONDS))
    mine = max(found.pop("frazil"))
    return [
        Figure(f"{CONNECTIONS} callers, single messages, beside {name} with {CONNECTIONS} connections",
               f"{mine:,.0f}/s", f"{max(rates):,.0f}/s", mine / max(rates), "≥ 1", mine >= max(rates))
        for name, rates in found.items()
    ]  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with folder() as where, frazil_serve(where.absolute() / "data", "flight") as flight:
        with frazil.connect(flight) as remote:
            figures = [*one_at_a_time(remote, where), *batches(remote, where), *reading(remote)]
        figures += uvloop.run(beside_peers(flight, where.absolute()))
        report("The client", figures)


if __name__ == "__main__":
    main()
