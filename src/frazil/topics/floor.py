"""How far each table has its log, as the last mover told: for people and metrics, never for retention, which asks the
catalog itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frazil.core.json_file import read_json
from frazil.core.settings import Settings
from frazil.log.topic_log import TopicLog

STATUS_FILE = "~pipeline.json"


def status_path(settings: Settings) -> Path:
    """Where the mover tells how it stands."""
    assert settings.data is not None
    return settings.data / STATUS_FILE


class ToldStatus:
    """What the last mover told. The file is read once for each time that it was written."""

    def __init__(self, settings: Settings) -> None:
        self._path = status_path(settings)
        self._seen: tuple[tuple[int, int] | None, dict[str, Any] | None] = (None, None)

    def read(self) -> dict[str, Any] | None:
        """None if no mover has ever told anything."""
        version = self._version_now()
        if version != self._seen[0]:
            self._seen = (version, None if version is None else read_json(self._path) or {})
        return self._seen[1]

    def _version_now(self) -> tuple[int, int] | None:
        """The file is replaced as a whole: a new one has another inode or time."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


def table_end(told: Mapping[str, Any] | None, log: TopicLog) -> int:
    """How far the table has this log, as far as is known."""
    topic = (told or {}).get("topics", {}).get(str(log.name), {})
    return int(topic["table_end"]) if topic.get("log_id") == log.log_id else 0


def known_end(told: Mapping[str, Any], topic: str, log_id: str) -> tuple[int, int] | None:
    """How far the mover last knew a table to have a log, and when that was; None if it never said."""
    said = (told.get("topics") or {}).get(topic)
    if said is not None and said.get("error") is None:
        said = {**said, "time_us": told.get("time_us")}
    else:
        said = (told.get("known") or {}).get(topic)
    if said is None or said.get("log_id") != log_id or not isinstance(said.get("table_end"), int):
        return None
    return said["table_end"], int(said.get("time_us") or 0)
