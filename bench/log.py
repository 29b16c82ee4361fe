"""The log against the bare disk, in one run: `make bench`.

Bare and Frazil take turns in short rounds, so that a noisy neighbour meets both. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import pyarrow as pa

import frazil
import frazil.aio
from measure import BareFile, Figure, folder, percentile, report, us

KIB = 1024
MIB = 1024 * KIB
MESSAGE = os.urandom(KIB)


def one_producer(where: Path, rounds: int = 8, each: int = 400) -> list[Figure]:
    bare_file = BareFile(where / "bare", 64 * MIB)
    bare: list[float] = []
    ours: list[float] = []
    with frazil.open(where / "data") as storage:
        topic = storage.topic("/bench/one")
        for _ in range(50):
            topic.publish(MESSAGE)
            bare_file.write(MESSAGE)
        for _ in range(rounds):
            bare += [bare_file.write(MESSAGE) for _ in range(each)]
            for _ in range(each):
                started = time.perf_counter()
                topic.publish(MESSAGE)
                ours.append(time.perf_counter() - started)
    bare_file.close()
    figures = []
    for share, wanted in ((0.5, 2.0), (0.99, 3.0)):
        limit, measured = percentile(bare, share), percentile(ours, share)
        name = f"one producer, 1 KiB, p{share * 100:.0f}"
        figures.append(
            Figure(name, us(measured), us(limit), measured / limit, f"≤ {wanted}", measured <= wanted * limit)
        )
    return figures


def many_producers(where: Path, producers: int, seconds: float = 5.0) -> list[Figure]:
    bare_file = BareFile(where / "bare", 64 * MIB)
    for _ in range(50):
        bare_file.write(MESSAGE)
    bare = [bare_file.write(MESSAGE) for _ in range(1500)]

    async def run() -> tuple[int, float, list[float]]:
        latencies: list[float] = []
        async with await frazil.aio.open(where / "data") as storage:
            topic = await storage.topic("/bench/many")

            async def produce(stop_at: float) -> None:
                while (started := time.perf_counter()) < stop_at:
                    await topic.publish(MESSAGE)
                    latencies.append(time.perf_counter() - started)

            async def all_produce(duration: float) -> float:
                started = time.perf_counter()
                await asyncio.gather(*(produce(started + duration) for _ in range(producers)))
                return time.perf_counter() - started

            await all_produce(2.0)  # until the cache is full and its memory is used again
            latencies.clear()
            took = await all_produce(seconds)
            return len(latencies), took, latencies

    count, took, latencies = asyncio.run(run())
    bare += [bare_file.write(MESSAGE) for _ in range(1500)]
    bare_file.close()
    limit = percentile(bare, 0.5)
    rate = count / took
    peer = bare_group_commit(where, producers)
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    ratio = rate * limit
    name = f"{producers} asyncio producers, 1 KiB"
    return [
        Figure(name, f"{rate:,.0f}/s", f"{1 / limit:,.0f}/s", ratio, "≥ 15", ratio >= 15),
        Figure(f"{name}: p99 (p50 {us(p50)})", us(p99), "2,000 µs", p99 / 0.002, "≤ 1", p99 <= 0.002),
        Figure(f"{name}, beside bare group commit", f"{rate:,.0f}/s", f"{peer:,.0f}/s", rate / peer, "-", True),
    ]


def bare_group_commit(where: Path, producers: int, seconds: float = 3.0) -> float:
    """Messages per second of the least that could be done: asyncio, one thread, join, write, fdatasync, no format.

    What asyncio, the hand-over between two threads and the disk leave possible on this machine, in this run.
    """

    async def run() -> float:
        loop = asyncio.get_running_loop()
        waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        kicks: queue.SimpleQueue[bool] = queue.SimpleQueue()
        file = BareFile(where / "peer", 256 * MIB)

        def commit() -> None:
            nonlocal waiting
            while kicks.get():
                group, waiting = waiting, []
                if group:
                    file.write(b"".join([message for message, _ in group]))
                    loop.call_soon_threadsafe(resolve, group)

        def resolve(group: list[tuple[bytes, asyncio.Future[None]]]) -> None:
            for _, future in group:
                future.set_result(None)

        async def produce(stop_at: float) -> int:
            count = 0
            while time.perf_counter() < stop_at:
                future: asyncio.Future[None] = loop.create_future()
                waiting.append((MESSAGE, future))
                if len(waiting) == 1:
                    kicks.put(True)
                await future
                count += 1
            return count

        thread = threading.Thread(target=commit)
        thread.start()
        started = time.perf_counter()
        count = sum(await asyncio.gather(*(produce(started + seconds) for _ in range(producers))))
        took = time.perf_counter() - started
        kicks.put(False)
        thread.join()
        file.close()
        return count / took

    return asyncio.run(run())


def bulk(where: Path, rounds: int = 12, each: int = 8) -> list[Figure]:
    rows = 4096 - 16
    batch = pa.RecordBatch.from_arrays(
        [pa.array([os.urandom(KIB) for _ in range(rows)], pa.binary())], names=["_payload"]
    )
    size = len(batch.serialize())
    data = os.urandom(size)
    settings = frazil.Settings(data=where / "data", wal=frazil.WalSettings(cache_bytes=64 * MIB))
    bare_file = BareFile(where / "bare", 512 * MIB)
    bare_s = ours_s = 0.0
    with frazil.open(settings) as storage:
        topic = storage.topic("/bench/bulk")
        for _ in range(each):
            topic.publish_many(batch)
            bare_file.write(data)
        for _ in range(rounds):
            bare_s += sum(bare_file.write(data) for _ in range(each))
            started = time.perf_counter()
            for _ in range(each):
                topic.publish_many(batch)
            ours_s += time.perf_counter() - started
    bare_file.close()
    total = rounds * each * size / 1e6
    ratio = bare_s / ours_s
    return [
        Figure(
            "batches of 4 MiB",
            f"{total / ours_s:,.0f} MB/s",
            f"{total / bare_s:,.0f} MB/s",
            ratio,
            "≥ 0.80",
            ratio >= 0.8,
        )
    ]


def replay(where: Path, size_bytes: int = 512 * MIB) -> list[Figure]:
    batch = pa.RecordBatch.from_arrays(
        [pa.array([os.urandom(KIB) for _ in range(256)], pa.binary())], names=["_payload"]
    )
    settings = frazil.Settings(
        data=where / "data",
        wal=frazil.WalSettings(cache_bytes=0, sync_mode=frazil.SyncMode.NONE),
    )
    figures = []
    with frazil.open(settings) as storage:
        topic = storage.topic("/bench/replay")
        for _ in range(size_bytes // (256 * KIB)):
            topic.publish_many(batch)
        figures.append(_read_speed("replay from files (page cache)", topic))
    cached = settings.model_copy(update={"wal": settings.wal.model_copy(update={"cache_bytes": 2 * size_bytes})})
    with frazil.open(cached) as storage:
        topic = storage.topic("/bench/cached")
        for _ in range(size_bytes // 4 // (256 * KIB)):
            topic.publish_many(batch)
        before = storage.metrics.reads_from_files
        figures.append(_read_speed("replay from the cache", topic))
        touched = storage.metrics.reads_from_files - before
        figures.append(
            Figure("replay from the cache: reads of files", str(touched), "0", float(touched), "= 0", touched == 0)
        )
    return figures


def _read_speed(name: str, topic: frazil.Topic) -> Figure:
    best = 0.0
    for _ in range(3):
        started, size = time.perf_counter(), 0
        for batch in topic.read_batches("earliest"):
            size += batch.num_rows * KIB
        best = max(best, size / (time.perf_counter() - started) / 1e9)
    return Figure(name, f"{best:.2f} GB/s", "1 GB/s", best, "≥ 1", best >= 1)


def tail(where: Path, count: int = 3000) -> list[Figure]:
    acknowledged: dict[int, float] = {}
    seen: dict[int, float] = {}
    with frazil.open(where / "data") as storage:
        topic = storage.topic("/bench/tail")
        topic.publish(MESSAGE)

        def follow() -> None:
            for message in topic.read("latest", follow=True, end=1 + count):
                seen[message.offset] = time.perf_counter()

        reader = threading.Thread(target=follow)
        reader.start()
        for _ in range(count):
            offset = topic.publish(MESSAGE)
            acknowledged[offset] = time.perf_counter()
            while offset not in seen:  # the reader waits at the end again before the next
                time.sleep(0.0002)
        reader.join()
    delays = [max(0.0, seen[offset] - acknowledged[offset]) for offset in acknowledged]
    p50 = percentile(delays, 0.5)
    return [
        Figure(
            f"tail: ack to reader, p50 (p99 {us(percentile(delays, 0.99))})",
            us(p50),
            "500 µs",
            p50 / 0.0005,
            "≤ 1",
            p50 <= 0.0005,
        )
    ]


def many_topics(where: Path, count: int = 10_000) -> list[Figure]:
    with frazil.open(where / "data") as storage:
        for index in range(count):
            storage.topic(f"/bench/t{index}").publish(b"x")
    # a process of its own, so that nothing but the topics is in its memory
    command = [sys.executable, __file__, "--open", str(where / "data")]
    took, each, extra = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [
        Figure(f"opening {count:,} topics", f"{took:.2f} s", "5 s", took / 5, "≤ 1", took <= 5),
        Figure("memory of an idle topic", f"{each:.1f} KiB", "20 KiB", each / 20, "≤ 1", each <= 20),
        Figure("threads for all idle topics", str(extra), "1", float(extra), "≤ 1", extra <= 1),
    ]


def open_all(data: Path) -> None:
    """Open every topic of a folder and print seconds, KiB and threads that it took."""
    frazil.open(None).close()
    gc.collect()
    time.sleep(0.5)  # the thread of the last calls ends
    process = psutil.Process()
    before, threads = process.memory_info().rss, threading.active_count()
    started = time.perf_counter()
    storage = frazil.open(data)
    names = storage.topics()
    for name in names:
        storage.topic(name)
    took = time.perf_counter() - started
    gc.collect()
    time.sleep(0.5)
    each = (process.memory_info().rss - before) / len(names) / KIB
    sys.stdout.write(json.dumps([took, each, threading.active_count() - threads]) + "\n")
    storage.close()


def steady(where: Path, seconds: float = 600.0) -> list[Figure]:
    """Resident memory of a publisher under steady load, after the cache has filled."""
    process = psutil.Process()
    settings = frazil.Settings(
        data=where / "data",
        wal=frazil.WalSettings(
            cache_bytes=64 * MIB, max_file_size=16 * MIB, retention=frazil.RetentionSettings(bytes=256 * MIB)
        ),
    )

    async def run() -> list[float]:
        samples: list[float] = []
        async with await frazil.aio.open(settings) as storage:
            topic = await storage.topic("/bench/steady")
            stop_at = time.perf_counter() + seconds

            async def produce() -> None:
                while time.perf_counter() < stop_at:
                    await topic.publish(MESSAGE)

            async def sample() -> None:
                while time.perf_counter() < stop_at:
                    await asyncio.sleep(seconds / 60)
                    samples.append(process.memory_info().rss / MIB)

            await asyncio.gather(sample(), *(produce() for _ in range(64)))
        return samples

    samples = asyncio.run(run())
    settled = samples[len(samples) // 4 :]
    early = sum(settled[: len(settled) // 3]) / (len(settled) // 3)
    late = sum(settled[-len(settled) // 3 :]) / (len(settled[-len(settled) // 3 :]))
    ratio = late / early
    return [
        Figure(
            f"memory over {seconds:.0f} s of load",
            f"{late:,.0f} MiB",
            f"{early:,.0f} MiB",
            ratio,
            "≤ 1.05",
            ratio <= 1.05,
        )
    ]


PARTS: dict[str, Callable[[Path], list[Figure]]] = {
    "one": one_producer,
    "many": lambda where: many_producers(where, 128),
    "more": lambda where: [figure for figure in many_producers(where, 1024) if "p99" not in figure.name],
    "bulk": bulk,
    "replay": replay,
    "tail": tail,
    "topics": many_topics,
    "steady": steady,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"any of {', '.join(PARTS)}; all but steady if none")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        open_all(arguments.open)
        return
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    figures: list[Figure] = []
    for part in arguments.parts or [name for name in PARTS if name != "steady"]:
        with folder() as where:
            figures += PARTS[part](where)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(figure) for figure in figures]) + "\n")
    else:
        report("Frazil's log against the bare disk", figures)


if __name__ == "__main__":
    main()
