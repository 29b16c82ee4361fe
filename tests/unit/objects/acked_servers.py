"""Processes that acknowledge rows once the object store has them, and a store that a test holds back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.log.storage import open_storage
from frazil.objects.acks import AckedLogs
from frazil.objects.epoch import EpochClaim
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.loading import load_objects
from frazil.testing import FaultyDisk
from parts.faulty_store import FaultyStore

DATA, TOPIC = Path("/data"), "/shop/orders"
SECONDS = 20.0


class Server:
    """A process with a data folder; several may share a store."""

    def __init__(
        self, store: FaultyStore, disk: FaultyDisk | None = None, owner: str = "b1", **objects: object
    ) -> None:
        self.store = store
        self.disk = disk or FaultyDisk()
        values = {"gather_ms": 0, "ack_timeout_ms": 500, **objects}
        settings = make_settings({"data": str(DATA), "objects": {"enabled": True, **values}})
        self.link = FaultyStore(store)
        self.objects = ObjectsOfLogs(self.link)
        claim = lambda: EpochClaim(owner, f"http://{owner}")  # noqa: E731
        acks = self.acks = AckedLogs(settings.objects, lambda: self.objects, claim, SystemClock())
        self.storage = open_storage(settings, disk=self.disk, groups_of=lambda: acks)

    def made(self) -> frazil.Topic:
        return self.storage.create_topic(TOPIC, ack="object")

    def topic(self) -> frazil.Topic:
        return self.storage.topic(TOPIC, create=False)

    def killed(self, **objects: object) -> Server:
        """Return the next process with this folder."""
        return Server(self.store, self.kill(), **objects)

    def kill(self) -> FaultyDisk:
        """This process changes neither its folder nor the store any more. Return its disk."""
        self.link.is_away = True
        return self.disk.kill()


Serve = Callable[..., Server]


def payloads(topic: frazil.Topic) -> list[bytes]:
    return [message.payload for message in topic.read()]


def stored(store: FaultyStore, topic: frazil.Topic) -> int:
    """Return where the objects end, as another process finds them."""
    return load_objects(store.inner, topic.log.log_id, None).end


def eventually(check: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(SECONDS * 200)):
        if check():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen in time")


class Gate:
    """Stops creations in the store until it is opened."""

    def __init__(self, store: FaultyStore, until: Callable[[str], bool] = lambda name: True) -> None:
        self._stops = until
        self._open = threading.Event()
        self.reached = threading.Event()
        store.before_create = self._pass

    def _pass(self, name: str) -> None:
        if self._stops(name) and not self._open.is_set():
            self.reached.set()
            assert self._open.wait(SECONDS)

    def open(self) -> None:
        self._open.set()
