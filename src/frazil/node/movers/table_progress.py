"""The progress of each table, from the mover's last report: for people and metrics.
Retention asks the catalog itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from frazil.core.disk.json_file import read_json
from frazil.core.settings import Settings
from frazil.log.topic_log import TopicLog

STATUS_FILE = "~pipeline.json"


def status_path(settings: Settings) -> Path:
    """Return the path of the mover's status file."""
    assert settings.data is not None
    return settings.data / STATUS_FILE


class MoverStatus(Protocol):
    """The mover's last report."""

    def read(self) -> dict[str, Any] | None:
        """Return None if no mover has ever reported."""
        ...


class StatusReader:
    """The last mover's report. The file is read once for each write."""

    def __init__(self, settings: Settings) -> None:
        self._path = status_path(settings)
        self._seen: tuple[tuple[int, int] | None, dict[str, Any] | None] = (None, None)

    def read(self) -> dict[str, Any] | None:
        """Return None if no mover has ever reported."""
        version = self._version_now()
        if version != self._seen[0]:
            self._seen = (version, None if version is None else read_json(self._path) or {})
        return self._seen[1]

    def _version_now(self) -> tuple[int, int] | None:
        """Identify the version of the file: it is replaced atomically, so a new one has another inode or time."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


class NoStatus:
    """The status for topics in memory, which no mover moves."""

    def read(self) -> None:
        return None


def status_of(settings: Settings) -> MoverStatus:
    """Return the status as processes other than the owner see it: from the file."""
    return StatusReader(settings) if settings.data is not None else NoStatus()


def table_end(report: Mapping[str, Any] | None, log: TopicLog) -> int:
    """Return the known end of this log in its table."""
    topic = (report or {}).get("topics", {}).get(str(log.name), {})
    return int(topic["table_end"]) if topic.get("log_id") == log.log_id else 0


def known_end(report: Mapping[str, Any], topic: str, log_id: str) -> tuple[int, int] | None:
    """Return the table end in the mover's last report about a log, and its time; None if there is none."""
    said = (report.get("topics") or {}).get(topic)
    if said is not None and said.get("error") is None:
        said = {**said, "time_us": report.get("time_us")}
    else:
        said = (report.get("known") or {}).get(topic)
    if said is None or said.get("log_id") != log_id or not isinstance(said.get("table_end"), int):
        return None
    return said["table_end"], int(said.get("time_us") or 0)
