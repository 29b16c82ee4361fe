"""The audit log: who did what to what, allowed or not, and from where; one JSON line for each decision.

    {"time", "request_id", "principal", "action", "resource", "allowed", "from", "reason"}
    {"time", "lost"}     so many records before this line were lost
    {"time", "refused"}  so many more callers were refused before this line, without credentials or with wrong ones

Everyone can be refused, and many lines would push older ones out of the last file: so refusals of unknown callers have
at most `UNKNOWN_PER_S_MAX` lines in a second, and the rest are counted.

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
from frazil.core.principal import ANONYMOUS, Principal
from frazil.core.settings.security import AuditSettings
from frazil.node.access.audit_log.file import AuditFile
from frazil.node.request_ids import current

QUEUE_MAX = 10_000
"""Records that wait for the disk."""
UNKNOWN_PER_S_MAX = 20
TEXT_MAX = 300
"""Longest value in a record; longer ones are cut, and end with `...`."""
_BATCH_MAX = 1_000
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
        self._untold = 0  # lost records that no line tells of yet
        self._refused = 0  # refusals of unknown callers that no line tells of yet
        self._unknown, self._since_us = 0, 0  # lines of unknown callers in the second that began then
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
        if who is ANONYMOUS and self._only_counts():
            return
        request = current()
        request_id = "" if request is None else request.id
        resource = _cut(resource)  # a caller may send megabytes, and many records may wait
        taken = _Record(self._clock.now_us(), request_id, who.name, action, resource, allowed, peer, reason)
        try:
            if self._is_closed:
                raise queue.Full
            self._queue.put_nowait(taken)
        except queue.Full:
            self._lose(1)
        else:
            with self._guard:
                self.records += 1

    def _only_counts(self) -> bool:
        """Count the refusal of an unknown caller. Returns whether it gets no line."""
        now_us = self._clock.now_us()
        with self._guard:
            if abs(now_us - self._since_us) >= 1_000_000:
                self._unknown, self._since_us = 0, now_us
            self._unknown += 1
            is_beyond = self._unknown > UNKNOWN_PER_S_MAX
            self._refused += is_beyond
        return is_beyond

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
                one = self._queue.get()
                while one is not None:
                    batch.append(one)
                    if len(batch) == _BATCH_MAX:
                        break
                    one = self._queue.get_nowait()
                is_open = one is not None
            except queue.Empty:
                pass
            self._write([_line(record) for record in batch])
        self._file.close()

    def _write(self, lines: list[bytes]) -> None:
        with self._guard:
            untold, self._untold = self._untold, 0
            refused, self._refused = self._refused, 0
        now = _time(self._clock.now_us())
        counts = {"lost": untold, "refused": refused}
        told = [_encoded({"time": now, what: count}) for what, count in counts.items() if count]
        try:
            self._file.write([*told, *lines])
        except OSError as error:
            if not self._has_failed:
                _log.error("the audit log %s can't be written: %s", self._file.path, error.strerror)
            self._has_failed = True
            self._lose(len(lines), untold)
            with self._guard:
                self._refused += refused
        else:
            if self._has_failed:
                _log.warning("the audit log %s is written again", self._file.path)
            self._has_failed = False
        sink = self._sink
        if sink is not None and (told or lines):
            try:
                sink([*told, *lines])
            except Exception:  # noqa: BLE001 - logged; the file has the records
                _log.exception("the audit topic refuses records")

    def _lose(self, count: int, untold: int = 0) -> None:
        with self._guard:
            self.lost += count
            self._untold += count + untold


def _line(record: _Record) -> bytes:
    return _encoded(
        {
            "time": _time(record.time_us),
            "request_id": record.request_id,
            "principal": _cut(record.principal),
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


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
