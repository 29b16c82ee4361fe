"""Finding the owner of a data folder, or becoming it: only the owner can say what is durable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from frazil.core.errors import OwnerUnreachable
from frazil.core.settings import Settings
from frazil.log.info import LogInfo
from frazil.log.ownership import served_by
from frazil.log.storage import open_storage
from frazil.pipeline.floor import TableFloor
from frazil.pipeline.source import LogSource, OwnLogs, RemoteLogs


class ServedLogs:
    """The logs of the process that serves a folder, also once it was started again on another port.

    It never becomes the owner itself: a mover that took the folder while `frazil serve` restarts would keep it out.
    """

    def __init__(self, settings: Settings, address: str) -> None:
        self._settings = settings
        self._remote = RemoteLogs(address)

    @property
    def address(self) -> str | None:
        return self._remote.address

    def logs(self) -> list[LogInfo]:
        try:
            return self._remote.logs()
        except OwnerUnreachable:
            if not self._moved():
                raise
        return self._remote.logs()

    def close(self) -> None:
        self._remote.close()

    def _moved(self) -> bool:
        served = served_by(self._settings)
        if served is None or served["flight"] == self._remote.address:
            return False
        self._remote.close()
        self._remote = RemoteLogs(served["flight"])
        return True


@contextlib.contextmanager
def open_source(settings: Settings) -> Iterator[LogSource]:
    """The owner's logs where one serves; else this process owns the folder, or raises `FolderInUse`."""
    served = served_by(settings)
    if served is None:
        with open_storage(settings) as storage:
            storage.floor_of = TableFloor(settings)
            yield OwnLogs(storage)
        return
    logs = ServedLogs(settings, served["flight"])
    try:
        yield logs
    finally:
        logs.close()
