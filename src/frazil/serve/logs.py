"""Log output of a serving process on stderr: lines for people, or one JSON object per event."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import datetime, timezone
from typing import Any

from frazil.node.request_ids import current

LINE_CHARACTERS_MAX = 8_192

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, logger and message, and the event's other fields."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request := current()) is not None:
            event["request_id"] = request.id
        event |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False, default=str)


class HumanLines(logging.Formatter):
    """One line per event. Client input is escaped, so that it cannot start a line or move the cursor of a terminal;
    only lines of a stack trace are indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():<7} {escaped(record.getMessage())}"
        request = current()
        request_id = getattr(record, "request_id", None if request is None else request.id)
        line = line if request_id is None else f"{line} (request {request_id})"
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {escaped(one)}" for one in trace)])


def escaped(text: str) -> str:
    """Escape control codes, line breaks and bidirectional controls as `\\n`, `\\x1b`, `\\u202e`. A tab stays."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\t" else _code(one) for one in text)


def _code(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _time(record: logging.LogRecord) -> str:
    time = datetime.fromtimestamp(record.created, tz=timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def log_to_stderr(*, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else HumanLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a warning for each broken request: see `frazil.serve`


def log_what_others_write() -> None:
    """Turn the stderr output of Spark's JVM and its workers into events of the logger `spark`, one per line.

    They inherit descriptor 2, whatever their own logging; so it becomes a pipe that this process reads, and our own
    output goes to the original stderr.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace", buffering=1)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    logging.captureWarnings(capture=True)
    threading.Thread(target=_log_lines, args=(reading,), name="frazil-others", daemon=True).start()


def _log_lines(descriptor: int) -> None:
    log = logging.getLogger("spark")
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
        while line := lines.readline(LINE_CHARACTERS_MAX):
            if line.strip():
                log.info("%s", line.rstrip())
