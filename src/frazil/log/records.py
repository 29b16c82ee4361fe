"""Small JSON files with a checksum, replaced as a whole: what a topic is, and how far each log is known to reach."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from frazil.core.disk import NO_RESOURCES, NO_ROOM, Disk, File
from frazil.core.errors import CorruptLog, DiskFull, ResourcesExhausted, TryLater


def write_record(disk: Disk, path: Path, content: dict[str, Any]) -> None:
    """Durable as a whole or not at all."""
    body = json.dumps(content, sort_keys=True, separators=(",", ":"))
    text = json.dumps({"crc": crc32(body.encode()), "content": body}).encode()
    temporary = path.with_name(path.name + ".new")
    names = {entry.name for entry in disk.list(path.parent)}
    if temporary.name in names:
        disk.remove(temporary)  # left by a crash before the rename: never in use
    with needs_room(path):
        write_new(disk, temporary, text)
        disk.rename(temporary, path)
        disk.sync_folder(path.parent)


def write_new(disk: Disk, path: Path, data: bytes) -> None:
    """A new file with a durable content; its name is not durable yet. Where there is no room nothing is left."""
    file = disk.open(path, "create")
    try:
        file.write([data], 0)
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(path)
        raise
    finally:
        file.close()


def passing_error(path: Path, error: OSError) -> TryLater | None:
    """What a caller is told of an error that passes; None for one that means a broken disk."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return DiskFull(str(path), reason)
    return ResourcesExhausted(str(path), reason) if error.errno in NO_RESOURCES else None


@contextlib.contextmanager
def needs_room(path: Path) -> Iterator[None]:
    """A disk that is full, and a process out of descriptors, pass: they are told apart from a broken disk."""
    try:
        yield
    except OSError as error:
        passing = passing_error(path, error)
        if passing is None:
            raise
        raise passing from error


@contextlib.contextmanager
def room_can_wait() -> Iterator[None]:
    """A disk without room must not keep expired segments: removing them is what makes room."""
    try:
        yield
    except (DiskFull, ResourcesExhausted):
        return
    except OSError as error:
        if error.errno not in NO_ROOM | NO_RESOURCES:
            raise


def open_to_read(disk: Disk, path: Path) -> File:
    """A file to read; where there is no descriptor for it, `ResourcesExhausted`, which is no sign of a bad file."""
    with needs_room(path):
        return disk.open(path, "read")


def read_record(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The content, None if there is no such file, or `CorruptLog` if it is not what was written."""
    try:
        file = open_to_read(disk, path)
    except FileNotFoundError:
        return None
    try:
        text = file.read(file.size(), 0)
    finally:
        file.close()
    try:
        outer = json.loads(text)
        body = outer["content"]
        if crc32(body.encode()) != outer["crc"]:
            raise ValueError("the checksum does not match")
        content = json.loads(body)
        if not isinstance(content, dict):
            raise TypeError("it holds no object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(str(path), 0, f"not a valid record ({error})") from None
    return content
