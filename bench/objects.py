"""The object tier beside the bare store, through the same client: `make bench`.

The store is the S3 server of the tests, on this machine: it shares processors and disk with what is measured, so the
figures are lower bounds. Loads are bounded in count. Nothing here is a test.

    objects.py [--share N]    1/N of the load
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import frazil
import frazil.aio
from frazil.core.settings import Settings, make_settings
from frazil.objects.opening import open_objects
from frazil.objects.store import ObjectStore
from measure import Figure, folder, percentile, report, seconds

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the server is a part of the tests

from parts.s3 import S3, s3_server

MIB = 1024 * 1024
MESSAGE = b"m" * 1024
BATCH = 1_000
GATHER_MS = 5
RANGE_BYTES = 4 * MIB
TOPIC = "/bench/rows"


def settings(s3: S3, where: Path, **objects: Any) -> Settings:
    store = s3.settings(s3.make_bucket("bench"), prefix=uuid.uuid4().hex)
    values = {"enabled": True, "store": store, "gather_ms": GATHER_MS, "parallel_max": 8, **objects}
    return make_settings({"data": str(where / uuid.uuid4().hex), "wal": {"cache_bytes": 0}, "objects": values})


def bare_puts(store: ObjectStore, size: int, count: int, at_once: int) -> float:
    """Put objects of random names; returns the seconds."""
    content = bytes(size)
    with ThreadPoolExecutor(at_once) as threads:
        return seconds(lambda: list(threads.map(lambda _: store.create(uuid.uuid4().hex, content), range(count))))


def acknowledging(s3: S3, where: Path, count: int) -> Figure:
    """One publisher that waits for each answer, beside a bare put of an object as large, plus the gathering."""
    chosen = settings(s3, where)
    store, bare = open_objects(chosen), []
    with frazil.open(chosen) as storage:
        topic = storage.create_topic(TOPIC, ack="object")
        topic.publish(MESSAGE)
        taken = [seconds(lambda: topic.publish(MESSAGE)) for _ in range(count)]
        size = max(info.size_bytes for info in store.walk(f"{topic.log.log_id}/"))
        for _ in range(count):
            bare.append(seconds(lambda: store.create(uuid.uuid4().hex, bytes(size))))
    p50, limit = percentile(taken, 0.5), 1.5 * percentile(bare, 0.5) + GATHER_MS / 1_000
    shown = f"1.5 x {percentile(bare, 0.5) * 1e3:.1f} + {GATHER_MS} ms"
    return Figure("ack object, one publisher, p50", f"{p50 * 1e3:.1f} ms", shown, p50 / limit, "≤ 1", p50 <= limit)


def many(s3: S3, where: Path, messages: int) -> Figure:
    """Batches of a thousand messages of 1 KiB from a few publishers."""

    async def publish() -> float:
        async with await frazil.aio.open(settings(s3, where)) as storage:
            topic = await storage.create_topic(TOPIC, ack="object")
            batch = [MESSAGE] * BATCH
            await topic.publish_many(batch)
            started = time.perf_counter()
            left = iter(range(messages // BATCH))

            async def one() -> None:
                for _ in left:
                    await topic.publish_many(batch)

            await asyncio.gather(*(one() for _ in range(16)))
            return (messages // BATCH * BATCH) / (time.perf_counter() - started)

    rate = asyncio.run(publish())
    name = f"ack object, {messages:,} messages of 1 KiB in batches"
    return Figure(name, f"{rate:,.0f}/s", "100,000/s", rate / 100_000, "≥ 1", rate >= 100_000)


def uploading(s3: S3, where: Path, messages: int) -> tuple[Figure, Figure]:
    """Upload of a full log beside bare puts, and a cold read of the objects beside bare ranged gets."""
    chosen = settings(s3, where)
    with frazil.open(chosen) as storage:
        topic = storage.create_topic(TOPIC)
        for _ in range(messages // BATCH):
            topic.publish_many([MESSAGE] * BATCH)
        objects: Any = storage.attachment
        taken = seconds(lambda: objects.uploader.finish(topic.log))
        held = objects.objects.of(topic.log.log_id).load().all()
    store, total = open_objects(chosen), sum(one.size_bytes for one in held)
    bare = bare_puts(store, total // len(held), len(held), 8)
    rate, limit = total / taken / MIB, total / bare / MIB
    upload = Figure("upload", f"{rate:,.0f} MiB/s", f"{limit:,.0f} MiB/s", rate / limit, "≥ 0.7", rate >= 0.7 * limit)
    return upload, reading(chosen, store, topic.log.log_id, total)


def reading(chosen: Settings, store: ObjectStore, log_id: str, total: int) -> Figure:
    infos = [(info.name, info.size_bytes) for info in store.walk(f"{log_id}/")]

    def bare() -> None:
        for name, size in infos:
            for start in range(0, size, RANGE_BYTES):
                store.get_range(name, start, min(RANGE_BYTES, size - start))

    for segment in (chosen.log_folder / TOPIC[1:]).glob("*.wal"):
        segment.rename(segment.with_suffix(".away"))

    def cold() -> None:
        from frazil.objects.known import ObjectsOfLogs
        from frazil.objects.reading import ObjectReader

        held = ObjectsOfLogs(store).of(log_id).load().all()
        for batch in ObjectReader(store, held, held[0].first):
            assert batch.rows.num_rows

    rounds = [(seconds(cold), seconds(bare)) for _ in range(3)]
    taken, limit = statistics.median(one for one, _ in rounds), statistics.median(one for _, one in rounds)
    shown = f"{total / limit / MIB:,.0f} MiB/s", limit / taken
    return Figure("cold read", f"{total / taken / MIB:,.0f} MiB/s", *shown, "≥ 0.7", limit / taken >= 0.7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=1, help="1/N of the load")
    share = parser.parse_args().share
    with folder() as where, s3_server(where.absolute() / "s3") as s3:
        figures = [acknowledging(s3, where, max(5, 200 // share)), many(s3, where, max(BATCH * 2, 500_000 // share))]
        figures += uploading(s3, where, max(BATCH * 2, 256_000 // share))
    report("The object tier beside the bare store (S3 on this machine)", figures)


if __name__ == "__main__":
    main()
