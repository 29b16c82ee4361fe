"""How far local segments may go: only what the table is known to hold.

The mover tells in its file how far each table has each log. Whoever owns the log asks here before retention removes
a segment. What the file does not say is not known, and nothing of it is removed. A mover that is never heard of again
leaves its last word: nothing above it goes. A topic that is not moved has no table to wait for.
"""

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


class TableFloor:
    """`always` is for an owner that has a mover. Without it, only a folder that a mover has told of has a floor."""

    def __init__(self, settings: Settings, *, always: bool = True) -> None:
        self._settings = settings
        self._told = ToldStatus(settings)
        self._always = always

    def __call__(self, log: TopicLog) -> int | None:
        if not self._settings.of_topic(log.name).enabled:
            return None
        told = self._told.read()
        return None if told is None and not self._always else table_end(told, log)
