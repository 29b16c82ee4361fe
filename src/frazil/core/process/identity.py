"""Identity of a process, stored so that another process can find out whether it still runs."""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_ENDED = -1


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    host: str
    """Shown to people."""
    place: str
    """The scope in which pids are unique: one boot of one machine, and one pid namespace of it."""
    pid: int
    started: int
    """Distinguishes a process from an earlier one with the same pid; 0 if the system does not report it."""

    @classmethod
    def own(cls) -> Self:
        return cls(socket.gethostname(), _place(), os.getpid(), _started(os.getpid()))

    @classmethod
    def restored(cls, value: Any) -> Self | None:
        """Return None if the value is not a stored identity."""
        try:
            return cls(str(value["host"]), str(value["place"]), int(value["pid"]), int(value["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    def stored(self) -> dict[str, Any]:
        return asdict(self)

    def is_of_this_place(self) -> bool:
        return self.place == _place()

    def is_running(self) -> bool | None:
        """Return None if this process cannot tell."""
        if not self.is_of_this_place():
            return None
        return lives(self.pid) and _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def lives(pid: int) -> bool:
    """Whether this host has a process with that pid."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it exists, and belongs to another user
    return True


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of this machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _place() -> str:
    """Return the boot id and the pid namespace if the system reports them, else the host name."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return socket.gethostname()
    return f"{boot_id()} {namespace}" if boot_id() else socket.gethostname()


def _started(pid: int) -> int:
    """Return 0 if the system does not report a start time, and `_ENDED` for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return _ENDED if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
