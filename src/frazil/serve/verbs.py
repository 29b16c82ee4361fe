"""Verbs of the command line as processes of the server's: what one of them says of its failure."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import IO, Any

from frazil.core.errors import FrazilError

STDERR_BYTES_MAX = 64 * 1024

Command = Callable[..., list[str]]
"""The command line of a verb on the same folder, with the same settings."""

_log = logging.getLogger("frazil.serve")


def failure_of(stderr: IO[bytes], code: int, what: str) -> dict[str, Any]:
    """The last line of what it wrote, as `--json` has it; of anything else the log says more."""
    stderr.seek(max(0, stderr.seek(0, 2) - STDERR_BYTES_MAX))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    with contextlib.suppress(ValueError):
        told = json.loads(lines[-1]) if lines else None
        if isinstance(told, dict) and "error" in told and "message" in told:
            return told
    _log.error("a %s ended with code %d: %s", what, code, " | ".join(lines[-5:]))
    return FrazilError(f"the {what} ended with code {code}; see the log", code=code).as_dict()
