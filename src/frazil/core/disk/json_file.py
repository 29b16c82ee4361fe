"""Small JSON status files that processes exchange. Writes are atomic but not durable: the writer rewrites the file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frazil.core.disk.modes import write_private_text
from frazil.core.errors.log import NewerFormat

FORMAT_VERSION = 1


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write atomically, so that a reader never sees a partial file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write_private_text(draft, json.dumps(value, ensure_ascii=False))
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path, *, refuse_newer: bool = False) -> dict[str, Any] | None:
    """Return None if the file is missing or malformed."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict):
        return None
    version = value.get("format", FORMAT_VERSION)
    if version == FORMAT_VERSION:
        return value
    if refuse_newer and isinstance(version, int):
        raise NewerFormat(str(path), version, FORMAT_VERSION)
    return None


def remove_json(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
