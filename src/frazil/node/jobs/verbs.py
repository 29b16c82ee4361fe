"""Run verbs of the command line as child processes of the server, and parse their errors."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from frazil.core.errors import FrazilError
from frazil.core.process.child import Child

Command = Callable[..., list[str]]
"""Returns the command line of a verb on the same folder, with the same settings."""

_log = logging.getLogger("frazil.serve")


def failure_of(child: Child, code: int, what: str) -> dict[str, Any]:
    """Return the error that a verb printed; log the output if it printed none."""
    lines = child.last_errors()
    if (error := reported_error(lines)) is not None:
        return error
    _log.error("a %s ended with code %d: %s", what, code, " | ".join(lines[-5:]))
    return FrazilError(f"the {what} ended with code {code}; see the log", code=code).as_dict()


def reported_error(lines: list[str]) -> dict[str, Any] | None:
    """Parse the error in the last line of stderr, as `--json` prints it; None if the verb printed none."""
    with contextlib.suppress(ValueError):
        message = json.loads(lines[-1]) if lines else None
        if isinstance(message, dict) and "error" in message and "message" in message:
            return message
    return None
