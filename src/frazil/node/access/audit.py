"""The audit log: who did what to what, allowed or not, and from where; one JSON line for each decision.

    {"time", "request_id", "principal", "call", "action", "resource", "allowed", "from", "reason"}
    {"time", "lost"}                            so many records before this line were lost
    {"time", "principal", "action", "refused"}  so many more were refused since the last such line
    {"time", "principal", "action", "allowed_more"}  so many more were allowed since the last such line
    {"time", "principal", "call", "action", "resource", "allowed", "from", "repeated"}
                                                so many more of these calls were allowed since the last such line

`call` is the gRPC method or the HTTP route, without the names in its path. Floods, and the routine calls of movers,
are counted instead of written: see `frazil.node.access.audit_log.limits`.

A caller never waits: records go to a bounded queue, and a thread writes them within a second. Records that the queue
has no room for, or that the disk refuses, are counted, and a line says how many. A file that has reached its size is
renamed to `.1`, older ones to `.2` and so on.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

from frazil.core.access import Action
from frazil.core.clock import Clock
from frazil.core.principal import Principal
from frazil.core.settings.security import AuditSettings
from frazil.node.access.audit_log.file import AuditFile
from frazil.node.access.audit_log.limits import LineLimits
from frazil.node.request_ids import current

QUEUE_MAX = 10_000
"""Records that wait for the disk."""
TEXT_MAX = 300
"""Longest value in a record; longer ones are cut, and end with `...`."""
_BATCH_MAX = 1_000
_LOOK_SECONDS = 1.0
_CLOSE_SECONDS = 10
_FREQUENT = frozenset({Action.DESCRIBE, Action.READ, Action.PRODUCE, Action.CONSUME})
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_log = logging.getLogger("frazil.audit")

Sink = Callable[[list[bytes]], None]
"""Takes lines, without a newline, in the thread of the log. It must not wait."""


class _Record(NamedTuple):
    time_us: int
    request_id: str
    principal: str
    call: str
    action: str
    resource: str
    allowed: bool
    peer: str
    reason: str


class Audit:
    """The audit log of a process. `record` may be called from any thread."""

    def __init__(
        self,
        settings: AuditSettings,
        folder: Path,
        clock: Clock,
        *,
        sink: Sink | None = None,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        """`sink` also gets every line, for the audit topic."""
        self.records = 0
        """Records that were taken."""
        self.lost = 0
        """Records that were not written to the file."""
        self._is_on = settings.enabled
        self._has_reads = settings.reads
        self._clock = clock
        self._sink = sink
        self._file = AuditFile(settings.path or folder / "audit.log", settings.bytes_max, settings.files_max)
        self._queue: queue.Queue[_Record | None] = queue.Queue(queue_max)
        self._guard = threading.Lock()
        self._unreported = 0  # lost records that no line reports yet
        self._limits = LineLimits(clock)
        self._has_failed = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="frazil-audit", daemon=True)

    def start(self) -> None:
        if self._is_on:
            self._thread.start()

    def wants(self, action: str, allowed: bool) -> bool:
        """Whether such a decision is recorded: refusals always, allowed reads and publishes by the settings."""
        return self._is_on and (not allowed or self._has_reads or action not in _FREQUENT)

    def record(
        self,
        who: Principal,
        action: str,
        resource: str,
        allowed: bool,
        peer: str = "",
        reason: str = "",
    ) -> None:
        """Record a decision, without waiting."""
        if not self.wants(action, allowed):
            return
        request = current()
        request_id, call = ("", "") if request is None else (request.id, request.call)
        resource = _cut(resource)  # a caller may send megabytes, and many records may wait
        if not self._limits.takes(who, action, resource, allowed, peer, call):
            return
        taken = _Record(self._clock.now_us(), request_id, who.name, call, action, resource, allowed, peer, reason)
        try:
            if self._is_closed:
                raise queue.Full
            self._queue.put_nowait(taken)
        except queue.Full:
            self._lose(1)
        else:
            with self._guard:
                self.records += 1

    def set_sink(self, sink: Sink | None) -> None:
        self._sink = sink

    def close(self) -> None:
        """Write what waits, and end the thread. Later records are lost."""
        self._is_closed = True
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:  # the disk hangs
            return
        self._thread.join(_CLOSE_SECONDS)

    # --- the thread

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch: list[_Record] = []
            try:
                one = self._queue.get(timeout=_LOOK_SECONDS)
                while one is not None:
                    batch.append(one)
                    if len(batch) == _BATCH_MAX:
                        break
                    one = self._queue.get_nowait()
                is_open = one is not None
            except queue.Empty:
                pass
            now = _time(self._clock.now_us())
            counted = [_encoded({"time": now, **_short(line)}) for line in self._limits.summaries(is_final=not is_open)]
            if batch or counted or not is_open:
                self._write([*[_line(record) for record in batch], *counted])
        self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        with self._guard:
            unreported, self._unreported = self._unreported, 0
        losses = [_encoded({"time": _time(self._clock.now_us()), "lost": unreported})] if unreported else []
        try:
            self._file.write([*losses, *lines])
        except OSError as error:
            if not self._has_failed:
                _log.error("the audit log %s can't be written: %s", self._file.path, error.strerror)
            self._has_failed = True
            self._lose(len(lines), unreported)
        else:
            if self._has_failed:
                _log.warning("the audit log %s is written again", self._file.path)
            self._has_failed = False
        sink = self._sink
        if sink is not None and (losses or lines):
            try:
                sink([*losses, *lines])
            except Exception:  # noqa: BLE001 - logged; the file has the records
                _log.exception("the audit topic refuses records")

    def _lose(self, count: int, unreported: int = 0) -> None:
        with self._guard:
            self.lost += count
            self._unreported += count + unreported


def _line(record: _Record) -> bytes:
    return _encoded(
        {
            "time": _time(record.time_us),
            "request_id": record.request_id,
            "principal": _cut(record.principal),
            "call": record.call,
            "action": _cut(record.action),
            "resource": _cut(record.resource),
            "allowed": record.allowed,
            "from": _cut(record.peer),
            "reason": _cut(record.reason),
        }
    )


def _encoded(content: dict[str, Any]) -> bytes:
    """Encode as ASCII: a newline or a control character in a name is escaped, and can't forge a line."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _short(line: dict[str, Any]) -> dict[str, Any]:
    return {name: _cut(value) if isinstance(value, str) else value for name, value in line.items()}


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
