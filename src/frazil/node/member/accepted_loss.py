"""A topic that goes on without the rows of a lost disk, because an operator has accepted their loss.

Some of these rows may be in its table, and subscriptions may be beyond the last row that is left: new rows get offsets
behind the table, and cursors are set back.
"""

from __future__ import annotations

from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.read.history import TableHistories
from frazil.log.folder.adoption import AdoptedLog
from frazil.node.renumber.cursors import cursors_above, lower_cursors
from frazil.node.restore.behind_table import behind_table, end_in_tables


class AcceptedLoss:
    """For one topic. All calls block, on the catalog too."""

    def __init__(self, settings: Settings, topic: TopicName, log_id: str) -> None:
        self._settings = settings
        self._topic = topic
        embedded = settings.embedded_catalog
        has_lake = embedded is None or embedded.exists()
        self._history = TableHistories(settings).of(topic, log_id) if has_lake else None
        self.table_end = 0 if self._history is None else end_in_tables(self._history)
        """Where the log goes on at least."""

    def applied(self, adopted: AdoptedLog, objects_end: int) -> AdoptedLog:
        """Return where the log goes on, with all cursors at or below it."""
        if self._history is not None and self.table_end > objects_end:
            adopted = behind_table(self._history, adopted, self.table_end)
        if cursors_above(self._settings, self._topic, adopted.end):
            lower_cursors(self._settings, self._topic, adopted.end)
        return adopted
