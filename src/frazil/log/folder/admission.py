"""Which topics of a folder are topics of its storage. A broker of a cluster withholds those that it may not own.

    withheld     in the folder, and hidden: nobody opens, lists, moves or creates it
    admitted     a topic of the storage. The folder remembers the epoch of its owner, and that of its objects

A folder of an earlier epoch may lack rows that another owner has written since. It is never opened: it is removed, or
set aside in `~lost` for people if it has rows that are nowhere else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog
from frazil.core.names import TopicName
from frazil.log.folder.catalog import TopicCatalog, TopicRecord
from frazil.log.repair.check import read_ends
from frazil.log.repair.survey import summarize
from frazil.log.uninterrupted import uninterrupted
from frazil.log.write.disk_budget import DiskBudget

_log = logging.getLogger("frazil.log")


class TopicAdmission:
    """Thread-safe. Calls block on the disk."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        catalog: TopicCatalog,
        budget: DiskBudget,
        guard: threading.RLock,
        let_go: Callable[[TopicName], None],
    ) -> None:
        """`guard` is that of the storage; `let_go` closes a topic of it."""
        self._disk = disk
        self._folder = folder
        self._catalog = catalog
        self._budget = budget
        self._guard = guard
        self._let_go = let_go

    def withhold_all(self) -> None:
        """Withhold all topics of a folder that was just opened."""
        with self._guard:
            for name in self._catalog.names():
                self._catalog.withhold(name)

    @property
    def changes(self) -> int:
        """Incremented whenever a topic is added, removed, withheld or admitted. Takes no lock."""
        return self._catalog.changes

    def names(self) -> set[TopicName]:
        """Return all topics in the folder, withheld or not, as they are at this moment. Takes no lock."""
        return self._catalog.names_in_folder()

    def withheld(self) -> set[TopicName]:
        with self._guard:
            return self._catalog.withheld()

    def record(self, name: TopicName) -> TopicRecord | None:
        """Return the record of a topic, withheld or not; None if there is none, or it cannot be read."""
        with self._guard:
            if name not in self._catalog and name not in self._catalog.withheld():
                return None
            try:
                return self._catalog.read(name)
            except CorruptLog as error:
                _log.error("%s: its record in the folder can't be read: %s", name, error)
                return None

    def admit(self, name: TopicName) -> None:
        """Make a topic one of the storage."""
        with self._guard:
            if name in self._catalog.withheld():
                self._catalog.admit(name)

    def remember(self, name: TopicName, owner_epoch: int, object_epoch: int) -> None:
        """Store the epochs in which this broker has the log; durable when it returns."""
        uninterrupted(lambda: self._remember(name, owner_epoch, object_epoch))

    def _remember(self, name: TopicName, owner_epoch: int, object_epoch: int) -> None:
        with self._guard:
            self._catalog.update(name, lambda record: record.with_epochs(owner_epoch, object_epoch))

    def withhold(self, name: TopicName) -> None:
        """Finish queued work of a topic, close and hide it. Its folder stays as it is.

        Raises `LogFailed` if acknowledged rows may not be durable; it is withheld then too.
        """
        uninterrupted(lambda: self._withhold(name))

    def _withhold(self, name: TopicName) -> None:
        with self._guard:
            if name not in self._catalog:
                return
            try:
                self._let_go(name)
            finally:
                self._catalog.withhold(name)

    def end_of(self, name: TopicName) -> int | None:
        """Return where the rows of a withheld topic end, by its files; None if they cannot be read."""
        with self._guard:
            ends, flaw = read_ends(self._disk, self._folder)
            found = summarize(self._disk, self._folder, name, ends)
            return found.end if flaw is None and found.problem is None else None

    def remove(self, name: TopicName) -> None:
        """Delete the folder of a withheld topic: its rows are elsewhere, or the topic was deleted."""
        uninterrupted(lambda: self._remove(name))

    def _remove(self, name: TopicName) -> None:
        with self._guard:
            if name in self._catalog.withheld():
                self._budget.give_back(self._catalog.delete_withheld(name))

    def set_aside(self, name: TopicName) -> Path | None:
        """Move the folder of a withheld topic to `~lost`, and return it."""
        return uninterrupted(lambda: self._set_aside(name))

    def _set_aside(self, name: TopicName) -> Path | None:
        with self._guard:
            return self._catalog.set_aside(name) if name in self._catalog.withheld() else None
