"""A process to be killed. Started once; for each command line on its input it forks a child that does the work.

Forking from a process that has imported everything, but opened nothing, makes a fresh process cheap. Each line
on the output is one write, so that what was written before the kill is there whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import frazil.aio
from frazil import Settings, WalSettings

TOPIC = "/crash/messages"
THREADS = 4
TASKS = 16


def settings(folder: str, sync_mode: str) -> Settings:
    return Settings(data=Path(folder), wal=WalSettings(max_file_size=64 * 1024, sync_mode=sync_mode, cache_capacity=0))


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def payloads(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([20, 1_000, 3_000, 20_000]))


def show(topic: frazil.Topic, start: int) -> None:
    """What a reader finds, from an offset on."""
    say("first", topic.stats().first_offset)
    for message in topic.read(min(start, topic.stats().end)):
        say("row", message.offset, digest(message.payload))
    say("shown")


def publish_from_threads(folder: str, sync_mode: str, start: int) -> None:
    storage = frazil.open(settings(folder, sync_mode))
    topic = storage.topic(TOPIC)
    show(topic, start)

    def work(number: int) -> None:
        rng = random.Random(os.urandom(16))
        while True:
            group = [payloads(rng) for _ in range(3 if number == 0 else 1)]
            if len(group) == 1:
                say("ack", topic.publish(group[0]), digest(group[0]))
                continue
            for offset, payload in zip(topic.publish_many(group), group, strict=True):
                say("ack", offset, digest(payload))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def publish_from_tasks(folder: str, sync_mode: str, start: int) -> None:
    storage = await frazil.aio.open(settings(folder, sync_mode))
    topic = await storage.topic(TOPIC)
    show(topic._topic, start)

    async def work() -> None:
        rng = random.Random(os.urandom(16))
        while True:
            payload = payloads(rng)
            say("ack", await topic.publish(payload), digest(payload))

    await asyncio.gather(*(work() for _ in range(TASKS)))


def reopen(folder: str, sync_mode: str, start: int) -> None:
    say("opening")
    with frazil.open(settings(folder, sync_mode)) as storage:
        show(storage.topic(TOPIC), start)


def work(what: str, folder: str, sync_mode: str, start: str) -> None:
    if what == "threads":
        publish_from_threads(folder, sync_mode, int(start))
    elif what == "tasks":
        asyncio.run(publish_from_tasks(folder, sync_mode, int(start)))
    else:
        reopen(folder, sync_mode, int(start))


def main(work: Callable[[str, str, str, str], None]) -> None:
    pa.array([b""])  # what Arrow imports with its first array is imported here, and not in each child
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        what, sync_mode, start, folder = line.rstrip("\n").split(" ", 3)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(KeyboardInterrupt):
                try:
                    work(what, folder, sync_mode, start)
                    code = 0
                except BaseException as error:  # noqa: BLE001 - the parent process wants to know of any
                    say("error", repr(error).replace("\n", " "))
                finally:
                    os._exit(code)
        say("pid", child)
        os.waitpid(child, 0)
        say("end")


if __name__ == "__main__":
    main(work)
