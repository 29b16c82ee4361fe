"""One server process: started, waited for, ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from parts.jvm import PARTS

POLL_S = 0.05


def part(name: str) -> Path:
    """A part that `make parts` has installed."""
    found = PARTS / name
    assert found.exists(), f"{name} is missing; run: make parts"
    return found


def free_port() -> int:
    """Below those that the system gives to connections: a server that was killed must get its port back."""
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    for port in random.SystemRandom().sample(
        range(10_000, max(given, 20_000)), 100
    ):  # not as pytest seeds it in each worker alike
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    log: Path,
    is_ready: Callable[[], bool],
    start_s_max: float = 90,
) -> Iterator[subprocess.Popen[bytes]]:
    """The server while the block runs; its own session, so that its children end with it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for _ in range(int(start_s_max / POLL_S)):
            assert process.poll() is None, f"{command[0]} ended at once:\n{log.read_text(errors='replace')[-2000:]}"
            if is_ready():
                break
            pause(POLL_S)
        else:
            raise AssertionError(f"{command[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)
            return
