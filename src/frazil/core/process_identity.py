"""Which process something belongs to, told so that another process can find out whether it still runs."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

_ENDED = -1


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    host: str
    """For people."""
    place: str
    """Where pids mean the same processes: one boot of one machine, and one pid namespace of it."""
    pid: int
    started: int
    """Tells a process apart from an earlier one of the same pid; 0 if the system does not say."""

    @classmethod
    def own(cls) -> Self:
        return cls(socket.gethostname(), _place(), os.getpid(), _started(os.getpid()))

    @classmethod
    def restored(cls, value: Any) -> Self | None:
        """None if it is not what `stored` gives."""
        try:
            return cls(str(value["host"]), str(value["place"]), int(value["pid"]), int(value["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    def stored(self) -> dict[str, Any]:
        return asdict(self)

    def is_of_this_place(self) -> bool:
        return self.place == _place()

    def is_running(self) -> bool | None:
        """None if it can't be known from here."""
        if not self.is_of_this_place():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is there, and another user's
        return _started(self.pid) == self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _place() -> str:
    """The boot and the pid namespace, where the system tells them; else the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> int:
    """0 if the system does not tell; `_ENDED` of one that has ended and whose parent has not asked for its code."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return _ENDED if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0
