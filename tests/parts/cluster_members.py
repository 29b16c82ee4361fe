"""Real `frazil serve` processes of one cluster, on one etcd and one folder of objects."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from frazil.node.access.local_token import read_local_token
from parts.danube import Server
from parts.processes import pause

SETTLED_S_MAX = 30.0


class Member(Server):
    """A broker of the cluster."""

    def __init__(self, folder: Path, broker_id: str, endpoint: str, **sections: Any) -> None:
        metadata = {"type": "etcd", "endpoints": endpoint, "prefix": "/doors"}
        others = {
            "objects": {"enabled": True, "store": {"type": "local", "path": str(folder / "objects")}},
            "cluster": {"enabled": True, "broker_id": broker_id, "lease_ms": 2_000, "drain_ms_max": 0},
            "pipeline": {"enabled": False},
            **sections,
        }
        super().__init__(folder / broker_id, metadata, others)
        self.told: dict[str, Any] = {}

    @property
    def config(self) -> Path:
        return self._config

    def start(self) -> dict[str, Any]:
        self.told = super().start()
        return self.told


@contextlib.contextmanager
def started_members(folder: Path, endpoint: str, names: str = "ab", **sections: Any) -> Iterator[dict[str, Member]]:
    """Start brokers, and wait until each knows the addresses of all."""
    with contextlib.ExitStack() as stack:
        found = {name: Member(folder, name, endpoint, **sections) for name in names}
        for one in found.values():
            one.start()
            stack.callback(one.kill)
        for one in found.values():
            until(lambda one=one: known_from(one) == len(found))
        yield found


def known_from(member: Member) -> int:
    """Return of how many brokers a broker knows the addresses."""
    token = read_local_token(member.folder / "data")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    listed = httpx.get(f"{member.http}/v1/cluster/brokers", headers=headers).json()["items"]
    return sum("danube" in one["addresses"] and "flight" in one["addresses"] for one in listed)


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + SETTLED_S_MAX
    while not holds():
        assert time.monotonic() < ends
        pause(0.05)
