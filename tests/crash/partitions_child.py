"""Creates, changes or deletes a topic on copies of a folder, and is killed before the first step, the second, and so on
until none is left.

Prints a line for each copy: its number, and whether the call came to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.broker.broker import Broker
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings, Settings
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.opening import open_meta
from frazil.meta.sqlite import SqliteStore
from frazil.node.topics.topics import Topics

DISK = ("open", "make_folder", "rename", "remove", "remove_folder", "sync_folder")
META = ("put_if", "put_all", "delete", "delete_all")
STEPS = (*((SqliteStore, name) for name in META), *((LocalDisk, name) for name in DISK))
PARTITIONS = 2
COLUMNS = pa.schema([("amount", pa.int64())])
HOUR = RetentionSettings(age_ms=3_600_000)


def count_steps(steps: int) -> None:
    """Gone by SIGKILL after so many steps from now on."""
    left = steps

    def counted(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def step(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*arguments, **more)

        setattr(kind, name, step)

    for kind, name in STEPS:
        counted(kind, name)


async def act(data: Path, what: str, topic: TopicName, steps: int) -> None:
    settings = Settings.of_folder(data)
    with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
        broker = Broker(storage, meta, BrokerSettings(progress_flush_ms=600_000), SystemClock())
        await broker.start()
        await broker._directory._carrying  # type: ignore[misc]
        topics = Topics(storage, lambda: broker)
        count_steps(steps)
        if what == "create":
            await broker.create_topics(topic, PARTITIONS, reliable=True, retention=None)
        elif what == "delete":
            await broker.delete_topic(topic, force=True)
        elif what == "create-typed":
            await topics.run(topics.create, topic, schema=COLUMNS)
        elif what == "retention":
            await topics.run(topics.set_retention, str(topic), HOUR)
        os._exit(0)


if __name__ == "__main__":
    template, copies, what, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], TopicName.parse(sys.argv[4])
    for steps in range(200):
        copy = copies / str(steps)
        shutil.copytree(template, copy)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(act(copy, what, name, steps))
            finally:
                os._exit(3)
        status = os.waitpid(pid, 0)[1]
        ended = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        assert ended or os.WIFSIGNALED(status), status
        print(steps, ended, flush=True)
        if ended:
            break
