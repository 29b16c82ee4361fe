"""The names of objects: `{log id}/{epoch}/{first offset}`, below the prefix of the settings."""

from __future__ import annotations

import re
from typing import NamedTuple

FIRST_EPOCH = 1

_NAME = re.compile(r"([0-9A-Za-z-]{1,64})/([0-9]{8})/([0-9]{20})", re.ASCII)


class ObjectName(NamedTuple):
    log_id: str
    epoch: int
    first: int

    def __str__(self) -> str:
        return f"{epoch_folder(self.log_id, self.epoch)}{self.first:020d}"


def log_folder(log_id: str) -> str:
    """Return the prefix of all objects of a log."""
    return f"{log_id}/"


def epoch_folder(log_id: str, epoch: int) -> str:
    return f"{log_id}/{epoch:08d}/"


def parse_name(name: str) -> ObjectName | None:
    """Return the parts of an object's name; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return None if found is None else ObjectName(found[1], int(found[2]), int(found[3]))
