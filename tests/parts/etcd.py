"""etcd on free ports of loopback, with data of its own; it can be killed, stopped for a while, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from parts.processes import accepts, free_port, part, pause, running

PASSWORD = "etcd-s3cret/é"


class Etcd:
    """One member. While it runs, its process is that of `pid`."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str | Path] = (),
        scheme: str = "http",
        name: str = "one",
        members: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"{scheme}://127.0.0.1:{self.port}"
        members = members or {name: f"http://127.0.0.1:{free_port()}"}
        peer, cluster = members[name], ",".join(f"{one}={where}" for one, where in members.items())
        self._scheme = scheme
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            *(part("etcd"), "--name", name, "--data-dir", folder / "data"),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster),
            *("--logger", "zap", "--log-level", "warn"),
            *options,
        ]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, alone: bool = False) -> None:
        """When it returns it answers; a member that is `alone` as yet only takes connections."""
        ready = self.answers if self._scheme == "http" and not alone else lambda: accepts(self.port)
        log = self.folder / f"etcd-{len(list(self.folder.glob('etcd-*.log')))}.log"
        self._process = self._running.enter_context(running(self._command, {}, log, ready))

    def kill(self) -> None:
        """As a crash does: nothing is flushed that was not."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._running.close()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """It is there, takes connections, and does not answer."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            while not all(_is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
                pause(0.001)
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def copy(self, name: str) -> Path:
        """Its data as it is now, for `restore`. It is killed and started again, so that the copy is whole."""
        copy = self.folder / name
        self.kill()
        shutil.copytree(self.folder / "data", copy)
        self.start()
        return copy

    def restore(self, copy: Path) -> None:
        """As an operator puts back a backup: revisions, leases and keys are those of back then."""
        self.kill()
        shutil.rmtree(self.folder / "data")
        shutil.copytree(copy, self.folder / "data")
        self.start()

    def close(self) -> None:
        self._running.close()

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=5) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False


@contextlib.contextmanager
def etcd_server(folder: Path, options: Sequence[str | Path] = (), scheme: str = "http") -> Iterator[Etcd]:
    folder.mkdir(parents=True, exist_ok=True)
    server = Etcd(folder, options, scheme)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def etcd_cluster(folder: Path, names: Sequence[str] = ("one", "two", "three")) -> Iterator[list[Etcd]]:
    """Members of one cluster, which elect a leader among them: by short times, so that tests need not wait for it."""
    members = {name: f"http://127.0.0.1:{free_port()}" for name in names}
    quick = ["--heartbeat-interval", "50", "--election-timeout", "500"]
    servers = []
    with contextlib.ExitStack() as stack:
        for name in names:
            (folder / name).mkdir(parents=True)
            server = Etcd(folder / name, quick, name=name, members=members)
            stack.callback(server.close)
            server.start(alone=True)
            servers.append(server)
        for server in servers:
            while not server.answers():
                pause(0.02)
        yield servers


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(") ")[2].startswith("T")


def gateway(endpoint: str, path: str, body: dict[str, object], token: str = "") -> dict[str, object]:
    """etcd by its other door, which Frazil does not use."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(endpoint + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
    return found


def turn_on_users(server: Etcd) -> None:
    for path, body in (
        ("/v3/auth/user/add", {"name": "root", "password": PASSWORD}),
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/enable", {}),
    ):
        gateway(server.endpoint, path, dict(body))
