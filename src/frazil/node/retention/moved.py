"""Whether rows of a folder are moved to tables, and to which catalog: a durable fact stored with the rows.

    {log folder}/~moved    {"catalog"}: that of the process that moves; null if only a remote mover knows it

The first process that moves rows writes it, and every later process obeys it, whatever its own settings leave out.
Older folders without this file are recognized by the embedded catalog or the mover's status file.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from frazil.core.disk import Disk
from frazil.core.errors import LakeUnavailable
from frazil.core.settings import Settings
from frazil.log.format.records import read_record, write_record
from frazil.node.movers.table_progress import status_path

MOVED_FILE = "~moved"
EMBEDDED = "embedded"

_writing = threading.Lock()


def catalog_name(settings: Settings) -> str:
    """Return the name of the settings' catalog, without secrets: equal names mean the same tables."""
    if settings.embedded_catalog is not None:
        return EMBEDDED
    catalog = settings.catalog
    uri = urlsplit(catalog.uri.get_secret_value() if catalog.uri is not None else "")
    host = uri.netloc.rpartition("@")[2]
    place = f"{uri.scheme}://{host}{uri.path}" if uri.scheme else uri.path
    return " ".join(filter(None, [catalog.type.value, catalog.name, place, catalog.warehouse]))


def mark_moved(settings: Settings, disk: Disk, catalog: str | None) -> None:
    """Durable when it returns. A mover without a named catalog does not replace a named one."""
    with _writing:
        before = _read(settings, disk)
        if before is not None and catalog in (None, before.get("catalog")):
            return
        write_record(disk, _path(settings), {"catalog": catalog})


class MovedFolder:
    def __init__(self, settings: Settings, disk: Disk) -> None:
        self._settings = settings
        self._disk = disk
        self._is_moved = False

    def is_moved(self) -> bool:
        """Whether rows of the folder were ever moved, or meant to be. It is never reset."""
        if not self._is_moved:
            embedded = self._settings.embedded_catalog
            self._is_moved = (
                _read(self._settings, self._disk) is not None
                or status_path(self._settings).exists()
                or (embedded is not None and embedded.exists())
            )
        return self._is_moved

    def catalog(self) -> str | None:
        """The catalog of the process that moved last; None if unknown."""
        found = (_read(self._settings, self._disk) or {}).get("catalog")
        return None if found is None else str(found)


def check_catalog(settings: Settings, disk: Disk) -> None:
    """Refuse settings that name another catalog than that of the folder's mover."""
    known, own = MovedFolder(settings, disk).catalog(), catalog_name(settings)
    if known is not None and known != own:
        reason = f"rows of this folder are moved to the catalog `{known}`, and these settings name `{own}`"
        raise LakeUnavailable("catalog", reason, "open the folder with the settings of its mover")


def _path(settings: Settings) -> Path:
    return settings.log_folder / MOVED_FILE


def _read(settings: Settings, disk: Disk) -> dict[str, Any] | None:
    return read_record(disk, _path(settings))
