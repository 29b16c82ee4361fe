"""The last report of a mover, in the memory of the process that movers report to."""

from __future__ import annotations

import threading
from typing import Any

from frazil.core.clock import Clock
from frazil.core.disk.json_file import read_json, write_json
from frazil.core.settings import Settings
from frazil.node.movers.status_file import next_status
from frazil.node.movers.table_progress import status_path


class LastReport:
    """Keeps the last report of a mover. Thread-safe; used by the owner of the folder.

    The file is read once, for the report to an earlier process. After that it is only written, for other processes.
    """

    def __init__(self, settings: Settings) -> None:
        self._path = None if settings.data is None else status_path(settings)
        self._guard = threading.Lock()
        self._is_read = self._path is None
        self._value: dict[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the last report; None if no mover has ever reported."""
        if not self._is_read:
            with self._guard:
                self._read_file()
        return self._value

    def keep(self, clock: Clock, host: str, pid: int, value: dict[str, Any]) -> None:
        """Store a mover's report with the current time."""
        with self._guard:
            self._read_file()
            self._value = next_status(self._value or {}, clock, host, pid, value)
            if self._path is not None:
                write_json(self._path, self._value)

    def _read_file(self) -> None:
        if not self._is_read:
            assert self._path is not None
            self._value = read_json(self._path)
            self._is_read = True
