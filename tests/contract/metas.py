"""Places where small facts are kept: whoever has one, in whatever process, opens the same store."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta.etcd import EtcdStore
from frazil.meta.opening import META_FILE, open_meta
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import ABSENT, MetaStore
from parts.etcd import gateway

KINDS = ("sqlite", "etcd")
TTL_MS = {"sqlite": 1_500, "etcd": 2_000}
"""etcd grants no less."""


@dataclass(frozen=True, slots=True)
class Place:
    folder: Path
    metadata: MetadataSettings

    @property
    def kind(self) -> str:
        return self.metadata.type.value

    def open(self) -> MetaStore:
        return open_meta(Settings(data=self.folder, metadata=self.metadata))

    def compact(self) -> int:
        """Make changes, and let the store forget all but the newest; the revision before them."""
        store = self.open() if self.kind == "etcd" else SqliteStore(self.folder / META_FILE, changes_max=1)
        before = store.snapshot("/").revision
        revision = ABSENT
        for turn in range(130):
            put = store.put_if("/compacted", str(turn).encode(), revision)
            assert put is not None
            revision = put
        store.close()
        if self.kind == "etcd":
            gateway(self.metadata.endpoints[0], "/v3/kv/compaction", {"revision": revision, "physical": True})
        return before


def add_one(store: MetaStore, times: int) -> None:
    for _ in range(times):
        while True:
            found = store.get("/count")
            value = 0 if found is None else int(found.value)
            if store.put_if("/count", str(value + 1).encode(), ABSENT if found is None else found.revision):
                break


def add_in_process(place: Place, times: int) -> None:
    store = place.open()
    add_one(store, times)
    store.close()


def hold(place: Place, told: Connection) -> None:
    """Hold a key as long as this process lives."""
    store = place.open()
    lease = store.grant_lease(TTL_MS[place.kind])
    told.send(store.put_if("/held", str(os.getpid()).encode(), ABSENT, lease))
    while store.keep_alive(lease):
        threading.Event().wait(lease.ttl_ms / 4_000)


def settings(*endpoints: str, **values: Any) -> MetadataSettings:
    prefix = f"/test-{uuid.uuid4().hex[:12]}"
    return MetadataSettings.model_validate({"type": "etcd", "endpoints": endpoints, "prefix": prefix, **values})


@contextlib.contextmanager
def opened(chosen: MetadataSettings) -> Iterator[EtcdStore]:
    with contextlib.closing(EtcdStore(chosen)) as store:
        yield store
