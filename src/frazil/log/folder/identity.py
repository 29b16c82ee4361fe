"""The identity of a data folder: its id, which copies share, and its mark, which distinguishes copies.

id     created once and stored in the folder (`~folder`); a copy of the folder has the same id
mark   boot id, device and inode: identify one folder of one running system. A path from another process may be a
       copy under the same name, on another host or in another container, with the same log ids and other rows
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from frazil.core.disk import Disk
from frazil.core.process.identity import boot_id
from frazil.log.format.records import read_record, write_record

FOLDER_FILE = "~folder"


def folder_id(disk: Disk, folder: Path) -> str:
    """Return the id, created and stored durably on first use. Only the owner of the folder calls it."""
    found = read_record(disk, folder / FOLDER_FILE)
    if found is None:
        found = {"id": uuid.uuid4().hex}
        write_record(disk, folder / FOLDER_FILE, found)
    return str(found["id"])


@dataclass(frozen=True, slots=True)
class FolderMark:
    path: Path
    mark: str

    def is_here(self) -> bool:
        """Whether the path is the same folder for this process. A folder mounted from another host is not."""
        found = mark_of(self.path)
        return found is not None and found.mark == self.mark


def mark_of(folder: Path) -> FolderMark | None:
    """Return None if the folder is not on a disk, or the system has no boot id."""
    if not boot_id():
        return None
    try:
        status = folder.stat()
    except OSError:
        return None
    return FolderMark(folder.absolute(), f"{boot_id()}:{status.st_dev}:{status.st_ino}")
