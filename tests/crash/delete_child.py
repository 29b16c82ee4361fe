"""Deletes a topic on copies of a folder, and is killed before the first step, the second, and so on until none is left.

Prints a line for each copy: its number, and whether the verb came to its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from frazil.cli.main import main
from frazil.core.disk import LocalDisk
from frazil.meta.sqlite import SqliteStore

NAMES = ("rename", "remove", "remove_folder", "sync_folder")
STEPS = ((SqliteStore, "delete_all"), *((LocalDisk, name) for name in NAMES))


def delete(data: Path, topic: str, steps: int) -> None:
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
    code = main(["topics", "delete", topic, "--yes", "--force", "--data", str(data)])
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    template, copies, topic = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    for steps in range(100):
        copy = copies / str(steps)
        shutil.copytree(template, copy)
        pid = os.fork()
        if pid == 0:
            os.dup2(2, 1)
            delete(copy, topic, steps)
        status = os.waitpid(pid, 0)[1]
        ended = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        assert ended or os.WIFSIGNALED(status), status
        print(steps, ended, flush=True)
        if ended:
            break
