"""Small JSON files with a checksum, replaced as a whole: what a topic is, and how far each log is known to reach."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from frazil.core.disk import NO_ROOM, Disk
from frazil.core.errors import CorruptLog, DiskFull


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


@contextlib.contextmanager
def needs_room(path: Path) -> Iterator[None]:
    """A full disk passes, so it is told apart from a broken one."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise DiskFull(str(path), error.strerror or str(error)) from error


@contextlib.contextmanager
def room_can_wait() -> Iterator[None]:
    """A disk without room must not keep expired segments: removing them is what makes room."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def read_record(disk: Disk, path: Path) -> dict[str, Any] | None:
    """The content, None if there is no such file, or `CorruptLog` if it is not what was written."""
    try:
        file = disk.open(path, "read")
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
