"""Find the owner of a data folder, or become it: only the owner knows what is durable.

There are three ways: this process owns the folder; another process serves it on this host, and is found through the
folder; or the owner is given by its address, anywhere.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from frazil.core.credentials import ClientCredentials, credentials_of
from frazil.core.errors import InvalidSettings, OwnerUnreachable
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.log.folder.ownership import served_by
from frazil.log.info import LogInfo
from frazil.log.storage import Storage
from frazil.node.access.served import credentials_at, served_credentials
from frazil.node.movers.lease import Lead, MoverName
from frazil.node.movers.log_source import OwnLogs, RemoteOwner
from frazil.node.opening import open_to_move

Answer = TypeVar("Answer")

OpenDoor = Callable[[Storage], AbstractContextManager[tuple[str, ClientCredentials]]]
"""Starts a Flight server for a storage; returns the address at which remote tasks reach it, and what they present."""


class ServedLogs:
    """The process that serves a folder, even after it restarted on another port.

    It never becomes the owner itself: a mover that took the folder while `frazil serve` restarts would lock it out.
    """

    def __init__(self, settings: Settings, served: dict[str, Any]) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._take(served)

    @property
    def address(self) -> str | None:
        return self._advertised

    @property
    def credentials(self) -> ClientCredentials:
        return self._for_tasks.for_tasks()

    def logs(self) -> list[LogInfo]:
        return self._asked(lambda owner: owner.logs())

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
        return self._asked(lambda owner: owner.ask_to_lead(mover, lease_ms))

    def give_up(self, mover: MoverName) -> None:
        self._owner.give_up(mover)

    def tell(self, mover: MoverName, report: dict[str, Any]) -> None:
        self._owner.tell(mover, report)

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
        self._owner = RemoteOwner(served["flight"], served_credentials(self._settings, served))
        self._advertised = str(served.get("advertised") or served["flight"])
        self._for_tasks = credentials_at(self._settings, served, self._advertised)

    def _moved(self, before: RemoteOwner) -> bool:
        """Return whether there is another owner now; if two threads detect it at once, one connects to it."""
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
    """Use the named `owner`, else the process that serves the folder; otherwise own it, or raise `FolderInUse`. Then
    `open_door`, if given, lets tasks on other hosts fetch rows."""
    served = served_by(settings) if owner is None else None
    if owner is None and served is None:
        with open_to_move(settings) as storage, contextlib.ExitStack() as doors:
            if open_door is None:
                yield OwnLogs(storage)
            else:
                yield OwnLogs(storage, *doors.enter_context(open_door(storage)))
        return
    remote = ServedLogs(settings, served) if served is not None else _named(settings, owner or "")
    try:
        yield remote
    finally:
        remote.close()


def _named(settings: Settings, owner: str) -> RemoteOwner:
    return RemoteOwner(owner, credentials_of(settings.client))


def check_lake_is_named(settings: Settings) -> None:
    """Require the location of the tables for a remote mover: the embedded lake is in a folder of one host."""
    catalog, store = settings.catalog, settings.object_store
    if catalog.type is CatalogType.SQL and catalog.uri is None:
        raise InvalidSettings("catalog.uri: with --owner it must be given: the catalog in a data folder is that host's")
    decides = catalog.type in (CatalogType.REST, CatalogType.NAMED) or catalog.warehouse is not None
    if store.type is ObjectStoreType.LOCAL and store.path is None and not decides:
        raise InvalidSettings("object_store.type: with --owner it must be given, or object_store.path of a shared disk")
