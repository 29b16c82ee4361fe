"""A handler of Python's logging that keeps records for the exporter. It never waits, and never raises.

Records about the own tenant itself are left out: a failed append would be logged, and appended, and so on.
"""

from __future__ import annotations

import logging
import traceback
from contextvars import ContextVar

from frazil.node.request_ids import current
from frazil.node.telemetry.own.queues import OwnCounts, OwnQueue
from frazil.telemetry.own.logs import OwnRecord, severity_of
from frazil.telemetry.signals import Signal

TENANT = "_frazil"
BODY_CHARACTERS_MAX, STACK_CHARACTERS_MAX, TEXT_CHARACTERS_MAX = 8_192, 16_384, 1_024
ATTRIBUTES_MAX = 32
_OVERHEAD_BYTES = 200
_OTHERS_LEVEL_MIN = logging.WARNING
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

exporting: ContextVar[bool] = ContextVar("frazil_own_export", default=False)
"""Whether the exporter itself is at work: what it logs is left out."""


class OwnLogHandler(logging.Handler):
    """Takes records of Frazil's own loggers from INFO on, and those of others from WARNING on."""

    def __init__(self, queue: OwnQueue[OwnRecord], counts: OwnCounts) -> None:
        super().__init__(logging.INFO)
        self._queue = queue
        self._counts = counts

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not exporting.get() and _is_wanted(record):
                self._keep(record)
        except Exception:  # noqa: BLE001 - a message whose arguments do not fit must not fail its caller
            self._counts.dropped(Signal.LOGS, "unreadable", 1)

    def _keep(self, record: logging.LogRecord) -> None:
        body = record.getMessage()[:BODY_CHARACTERS_MAX]
        if f"/{TENANT}." in body:
            return
        attributes = {"log.logger": record.name, "thread.name": record.threadName or ""}
        request = current()
        if request is not None:
            attributes["frazil.request_id"] = request.id
        others = [(name, value) for name, value in vars(record).items() if name not in _STANDARD][:ATTRIBUTES_MAX]
        attributes |= {f"frazil.{name}": _text(value) for name, value in others}
        if any(f"/{TENANT}." in value for value in attributes.values()):
            return
        if record.exc_info and record.exc_info[1] is not None:
            attributes |= _exception(record.exc_info[1])
        size = _OVERHEAD_BYTES + 4 * len(body) + sum(4 * len(value) + len(key) for key, value in attributes.items())
        time_ns = int(record.created * 1_000_000) * 1_000
        kept = OwnRecord(time_ns, severity_of(record.levelno), record.levelname, body, attributes)
        self._queue.put(kept, size)


def _is_wanted(record: logging.LogRecord) -> bool:
    is_own = record.name == "frazil" or record.name.startswith("frazil.")
    return is_own or record.levelno >= _OTHERS_LEVEL_MIN


def _text(value: object) -> str:
    return (value if isinstance(value, str) else str(value))[:TEXT_CHARACTERS_MAX]


def _exception(error: BaseException) -> dict[str, str]:
    stack = "".join(traceback.format_exception(error))
    return {
        "exception.type": type(error).__qualname__,
        "exception.message": _text(error),
        "exception.stacktrace": stack[-STACK_CHARACTERS_MAX:],
    }
