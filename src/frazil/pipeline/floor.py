"""How far local segments may go: only what the table is known to hold.

The mover tells in its file how far each table has each log. Whoever owns the log asks here before retention removes
a segment. What the file does not say is not known, and nothing of it is removed.
"""

from __future__ import annotations

from frazil.core.json_file import read_json
from frazil.core.settings import Settings
from frazil.log.topic_log import TopicLog
from frazil.pipeline.status_file import status_path


class TableFloor:
    def __init__(self, settings: Settings) -> None:
        self._path = status_path(settings)

    def __call__(self, log: TopicLog) -> int:
        told = (read_json(self._path) or {}).get("topics", {}).get(str(log.name), {})
        return int(told["table_end"]) if told.get("log_id") == log.log_id else 0
