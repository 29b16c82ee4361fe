"""Several brokers on one etcd and one S3 server. Each reaches both through proxies of its own, which can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parts.cut_proxy import CutProxy, cut_proxy
from parts.danube import Server
from parts.etcd import Etcd, etcd_cluster
from parts.s3 import S3, s3_server

LEASE_MS = 2_000
"""The shortest lease: a test must not wait longer than needed for a broker to count as gone."""


class Broker(Server):
    """One broker of a cluster; see `Server` for how it is killed and started again."""

    def __init__(
        self, name: str, folder: Path, to_etcd: list[CutProxy], to_s3: CutProxy, sections: dict[str, Any]
    ) -> None:
        super().__init__(folder, others=sections)
        self.name = name
        self.to_etcd = to_etcd
        self.to_s3 = to_s3

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process: it neither works nor ends, as a host does that is swapped out."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """Leave no byte on the file system of its folder, which must be one of `small_disks`."""
        data = self.folder / "data"
        assert data.is_mount()
        with (data / "filler").open("wb", buffering=0) as filler:
            try:
                for size in (1 << 20, 1 << 12, 1):
                    with contextlib.suppress(OSError):  # no room for one more
                        while filler.write(b"f" * size) == size:
                            pass
                assert shutil.disk_usage(data).free < 1 << 12
                yield
            finally:
                filler.truncate(0)

    @contextlib.contextmanager
    def cut_off_etcd(self) -> Iterator[None]:
        with self._cut(*self.to_etcd):
            yield

    @contextlib.contextmanager
    def cut_off_s3(self) -> Iterator[None]:
        with self._cut(self.to_s3):
            yield

    @contextlib.contextmanager
    def _cut(self, *proxies: CutProxy) -> Iterator[None]:
        for proxy in proxies:
            proxy.refuse()
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.heal()


@dataclass
class BrokerCluster:
    brokers: list[Broker]
    etcd: list[Etcd]
    s3: S3
    bucket: str
    started: list[Broker] = field(default_factory=list)

    @property
    def flight(self) -> list[str]:
        """The addresses that a client of Frazil may begin with."""
        return [f"grpc://127.0.0.1:{one.flight_port}" for one in self.brokers]

    def named(self, name: str) -> Broker:
        return next(one for one in self.brokers if one.name == name)

    def start(self) -> None:
        for one in self.brokers:
            one.start()


@contextlib.contextmanager
def broker_cluster(
    folder: Path,
    names: tuple[str, ...] = ("b1", "b2", "b3"),
    *,
    etcd_names: tuple[str, ...] = ("one", "two", "three"),
    sections: dict[str, Any] | None = None,
    start: bool = True,
) -> Iterator[BrokerCluster]:
    """`sections` are further sections of the brokers' settings."""
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(s3_server(folder / "s3"))
        bucket = s3.make_bucket("frazil")
        etcd = stack.enter_context(etcd_cluster(folder / "etcd", etcd_names))
        brokers = []
        for name in names:
            to_etcd = [stack.enter_context(cut_proxy(one.port)) for one in etcd]
            to_s3 = stack.enter_context(cut_proxy(s3.port))
            brokers.append(_broker(name, folder / name, to_etcd, to_s3, s3, bucket, sections or {}))
            stack.callback(_end, brokers[-1])
        cluster = BrokerCluster(brokers, etcd, s3, bucket)
        if start:
            cluster.start()
        yield cluster


@contextlib.contextmanager
def small_disks(folder: Path, names: tuple[str, ...] = ("b1", "b2", "b3")) -> Iterator[None]:
    """File systems of their own, of half a GiB each, for the data of brokers in this folder. Root alone mounts."""
    with contextlib.ExitStack() as stack:
        for name in names:
            data = str(folder / name / "data")
            os.makedirs(data)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", data], check=True)
            stack.callback(subprocess.run, ["umount", data], check=True)
        yield


def _broker(
    name: str, folder: Path, to_etcd: list[CutProxy], to_s3: CutProxy, s3: S3, bucket: str, changed: dict[str, Any]
) -> Broker:
    store = s3.settings(bucket, endpoint=f"http://127.0.0.1:{to_s3.port}")
    sections: dict[str, Any] = {
        "cluster": {"enabled": True, "broker_id": name, "lease_ms": LEASE_MS, "rebalance": False},
        "metadata": {"type": "etcd", "endpoints": [f"http://127.0.0.1:{one.port}" for one in to_etcd]},
        "objects": {"enabled": True, "store": store, "open_interval_ms": 500},
        "pipeline": {"enabled": False},
    }
    for section, values in changed.items():
        sections[section] = {**sections.get(section, {}), **values}
    return Broker(name, folder, to_etcd, to_s3, sections)


def _end(broker: Broker) -> None:
    if broker.is_running:
        broker.kill()
