"""Finding the owner of a data folder, or becoming it: only the owner can say what is durable.

Three ways: this process owns the folder; another serves it on this host, and is found through the folder; or it is
named by its address, and may be anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from frazil.core.errors import InvalidSettings, OwnerUnreachable
from frazil.core.lake_settings import CatalogType, ObjectStoreType
from frazil.core.settings import Settings
from frazil.log.info import LogInfo
from frazil.log.ownership import served_by
from frazil.log.storage import Storage
from frazil.pipeline.lease import Lead, MoverName
from frazil.pipeline.source import OwnLogs, RemoteOwner
from frazil.topics.opening import open_to_move

Answer = TypeVar("Answer")

OpenDoor = Callable[[Storage], AbstractContextManager[str]]
"""Opens a Flight door over a storage and gives the address by which tasks elsewhere reach it."""


class ServedLogs:
    """The process that serves a folder, also once it was started again on another port.

    It never becomes the owner itself: a mover that took the folder while `frazil serve` restarts would keep it out.
    """

    def __init__(self, settings: Settings, served: dict[str, Any]) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._take(served)

    @property
    def address(self) -> str | None:
        return self._advertised

    def logs(self) -> list[LogInfo]:
        return self._asked(lambda owner: owner.logs())

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
        return self._asked(lambda owner: owner.ask_to_lead(mover, lease_ms))

    def give_up(self, mover: MoverName) -> None:
        self._owner.give_up(mover)

    def tell(self, mover: MoverName, told: dict[str, Any]) -> None:
        self._owner.tell(mover, told)

    def close(self) -> None:
        self._owner.close()

    def _asked(self, ask: Callable[[RemoteOwner], Answer]) -> Answer:
        owner = self._owner
        try:
            return ask(owner)
        except OwnerUnreachable:
            if not self._moved(owner):
                raise
        return ask(self._owner)

    def _take(self, served: dict[str, Any]) -> None:
        self._owner = RemoteOwner(served["flight"])
        self._advertised = str(served.get("advertised") or served["flight"])

    def _moved(self, before: RemoteOwner) -> bool:
        """Whether there is another one to ask now; of two threads that find out at once, one connects to it."""
        with self._guard:
            if self._owner is not before:
                return True
            served = served_by(self._settings)
            if served is None or served["flight"] == before.address:
                return False
            self._take(served)
        before.close()
        return True


@contextlib.contextmanager
def open_source(
    settings: Settings, owner: str | None = None, open_door: OpenDoor | None = None
) -> Iterator[OwnLogs | ServedLogs | RemoteOwner]:
    """The logs of the `owner` named, else of whoever serves the folder; else this process owns it, or raises
    `FolderInUse`. Then `open_door`, if given, lets tasks on other hosts fetch rows."""
    served = served_by(settings) if owner is None else None
    if owner is None and served is None:
        with open_to_move(settings) as storage, contextlib.ExitStack() as doors:
            yield OwnLogs(storage, doors.enter_context(open_door(storage)) if open_door is not None else None)
        return
    remote = ServedLogs(settings, served) if served is not None else RemoteOwner(owner or "")
    try:
        yield remote
    finally:
        remote.close()


def check_lake_is_named(settings: Settings) -> None:
    """Whoever is elsewhere must be told where the tables are: the embedded lake is in a folder of one host."""
    catalog, store = settings.catalog, settings.object_store
    if catalog.type is CatalogType.SQL and catalog.uri is None:
        raise InvalidSettings("catalog.uri: with --owner it must be given: the catalog in a data folder is that host's")
    decides = catalog.type in (CatalogType.REST, CatalogType.NAMED) or catalog.warehouse is not None
    if store.type is ObjectStoreType.LOCAL and store.path is None and not decides:
        raise InvalidSettings("object_store.type: with --owner it must be given, or object_store.path of a shared disk")
