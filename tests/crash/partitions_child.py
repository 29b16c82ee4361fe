"""Creates or deletes a topic with partitions on copies of a folder, by the broker, and is killed before the first step,
the second, and so on until none is left.

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

import frazil
from frazil.broker.broker import Broker
from frazil.core.broker_settings import BrokerSettings
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.meta.opening import open_meta
from frazil.meta.sqlite import SqliteStore

DISK = ("open", "make_folder", "rename", "remove", "remove_folder", "sync_folder")
STEPS = (
    *((SqliteStore, name) for name in ("put_all", "delete_all")), *((LocalDisk, name) for name in DISK)
)  # fmt: skip
PARTITIONS = 2


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
        count_steps(steps)
        if what == "create":
            await broker.create_topics(topic, PARTITIONS, reliable=True, retention=None)
        else:
            await broker.delete_topic(topic, force=True)
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
