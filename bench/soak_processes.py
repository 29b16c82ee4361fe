"""What the processes of a server take: memory, threads and open files, by their kind. Read from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def look_at_processes(server: int) -> dict[str, float]:
    """Figures of the server and of all processes below it, the sum for each kind."""
    totals: dict[str, float] = defaultdict(float)
    for pid in _with_children(server):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            kind = _kind(pid, server)
            place = Path(f"/proc/{pid}")
            seen = {
                "rss_mb": int((place / "statm").read_text().split()[1]) * PAGE / 1e6,
                "threads": len(list((place / "task").iterdir())),
                "files": len(list((place / "fd").iterdir())),
                "processes": 1,
            }
            for name, value in seen.items():
                totals[f"{kind}, {name}"] += value
    return dict(totals)


def _with_children(root: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children[parent].append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children[pid]
    return found


def _kind(pid: int, server: int) -> str:
    if pid == server:
        return "server"
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if Path(words[0]).name == "java":
        return "JVM"
    if any("pyspark" in word for word in words):
        return "Python workers"
    if "maintain" in words:
        return "maintenance"
    return "mover" if "pipeline" in words else "others"
