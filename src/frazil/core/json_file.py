"""Small JSON files by which processes tell one another how they stand. Whole or not at all, but not durable:
whoever wrote one writes it anew."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frazil.core.modes import write_private_text


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """In one step, so that a reader never sees half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write_private_text(draft, json.dumps(value, ensure_ascii=False))
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """None if there is no such file, or it is not what it should be."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def remove_json(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
