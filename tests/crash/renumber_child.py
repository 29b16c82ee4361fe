"""Renumbers a topic again and again from the same beginning, and is killed before the first step, the second, and so on
until none is left. After each, the folder is opened as its next owner would, and looked at.

Prints a line for each: how many steps were let through, whether the verb came to its end, whether the log was
renumbered by then, and whether the table had the log's id.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

import frazil
from frazil.cli.main import main
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.token import ends
from frazil.meta.broker_keys import progress_key
from frazil.meta.opening import open_meta
from frazil.meta.sqlite import SqliteStore
from frazil.node.renumber.renumber import renumber
from parts.behind import OLD, ORDERS, by_reader, in_table, proof_of, settings_in, tick

NAMES = ("make_folder", "rename", "remove", "remove_folder")
STEPS = (*((LocalDisk, name) for name in NAMES), (SqliteStore, "put_all"), (SqlCatalog, "commit_table"))


def killed_after(steps: int, act: Callable[[], int]) -> None:
    """Gone by SIGKILL after so many steps."""
    left = steps

    def counted(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def step(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*arguments)

        setattr(kind, name, step)

    for kind, name in STEPS:
        counted(kind, name)
    os._exit(act())


def look(settings: Settings, new: list[bytes], steps: int, ended: bool) -> int:
    table = open_catalog(settings).load_table(("shop", "orders"))
    with frazil.open(settings) as storage:
        log = storage.topic(ORDERS).log
        done, known = bool(log.former), log.log_id in ends(table)
    if not done:
        assert by_reader(settings) == list(enumerate([*OLD[:5], *new]))
        assert renumber(settings, ORDERS).handed_over
    with frazil.open(settings) as storage:
        assert tick(settings, storage).failures == 0  # where the log is renumbered, the mover hands the table over
    assert in_table(settings) == list(enumerate([*OLD, *new]))
    assert proof_of(settings).problems == []
    with contextlib.closing(open_meta(settings)) as meta:
        progress = meta.get(progress_key("s", TopicName.parse(ORDERS)))
    assert progress is not None
    assert json.loads(progress.value)["offset"] == 5
    print(steps, ended, done, known, flush=True)
    return 0


def in_a_child(act: Callable[[], int]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(act())
        except BaseException:  # noqa: BLE001 - a child of a fork must never go on as its parent
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitpid(pid, 0)[1]


if __name__ == "__main__":
    template, place, new = Path(sys.argv[1]), Path(sys.argv[2]), [text.encode() for text in sys.argv[3:]]
    ours = settings_in(place)
    verb = ["log", "renumber", ORDERS, "--yes", "--config", str(place / "settings.yaml")]
    for allowed in range(100):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(template, place)

        def act(allowed: int = allowed) -> int:
            os.dup2(2, 1)
            killed_after(allowed, lambda: main(verb))
            return 1

        status = in_a_child(act)
        through = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        assert through or os.WIFSIGNALED(status), status
        assert in_a_child(lambda n=allowed, e=through: look(ours, new, n, e)) == 0  # type: ignore[misc]
        if through:
            break
