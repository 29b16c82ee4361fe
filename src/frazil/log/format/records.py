"""Small JSON files with a checksum, replaced atomically: a topic's record, and the known end of each log."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from frazil.core.disk import NO_RESOURCES, NO_ROOM, Disk, File
from frazil.core.errors import CorruptLog, DiskFull, NewerFormat, ResourcesExhausted, TryLater

FORMAT_VERSION = 1


def write_record(disk: Disk, path: Path, content: dict[str, Any]) -> None:
    """Write durably and atomically."""
    body = json.dumps(content, sort_keys=True, separators=(",", ":"))
    text = json.dumps({"crc": crc32(body.encode()), "content": body}).encode()
    temporary = path.with_name(path.name + ".new")
    names = {entry.name for entry in disk.list(path.parent)}
    if temporary.name in names:
        disk.remove(temporary)  # left by a crash before the rename: never used
    with temporary_disk_errors(path):
        write_new(disk, temporary, text)
        disk.rename(temporary, path)
        disk.sync_folder(path.parent)


def write_new(disk: Disk, path: Path, data: bytes) -> None:
    """Create a file with durable content; its name is not durable yet. On a full disk nothing is left."""
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


def temporary_error(path: Path, error: OSError) -> TryLater | None:
    """Return the caller's error for a temporary failure; None if the disk is broken."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return DiskFull(str(path), reason)
    return ResourcesExhausted(str(path), reason) if error.errno in NO_RESOURCES else None


@contextlib.contextmanager
def temporary_disk_errors(path: Path) -> Iterator[None]:
    """Distinguish a full disk and exhausted descriptors, which are temporary, from a broken disk."""
    try:
        yield
    except OSError as error:
        passing = temporary_error(path, error)
        if passing is None:
            raise
        raise passing from error


@contextlib.contextmanager
def ignore_full_disk() -> Iterator[None]:
    """Continue on a full disk: removing expired segments frees space."""
    try:
        yield
    except (DiskFull, ResourcesExhausted):
        return
    except OSError as error:
        if error.errno not in NO_ROOM | NO_RESOURCES:
            raise


def open_to_read(disk: Disk, path: Path) -> File:
    """Open for reading; without a free descriptor it raises `ResourcesExhausted`, which does not mean a bad file."""
    with temporary_disk_errors(path):
        return disk.open(path, "read")


def read_record(disk: Disk, path: Path) -> dict[str, Any] | None:
    """Read the content; None if the file is missing, `CorruptLog` if it is not what was written."""
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
        version = int(outer.get("format", FORMAT_VERSION))
        if version > FORMAT_VERSION:
            raise NewerFormat(str(path), version, FORMAT_VERSION)
        body = outer["content"]
        if crc32(body.encode()) != outer["crc"]:
            raise ValueError("the checksum does not match")
        content = json.loads(body)
        if not isinstance(content, dict):
            raise TypeError("it holds no object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptLog(str(path), 0, f"not a valid record ({error})") from None
    return content
