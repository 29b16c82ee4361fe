"""The identity of a data folder, which goes where the folder goes."""

from __future__ import annotations

import uuid
from pathlib import Path

from frazil.core.disk import Disk
from frazil.log.records import read_record, write_record

FOLDER_FILE = "~folder"


def folder_id(disk: Disk, folder: Path) -> str:
    """Made and stored durably when it is asked for first. Only the owner of the folder asks."""
    found = read_record(disk, folder / FOLDER_FILE)
    if found is None:
        found = {"id": uuid.uuid4().hex}
        write_record(disk, folder / FOLDER_FILE, found)
    return str(found["id"])
