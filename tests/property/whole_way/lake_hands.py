"""The tables of a test's lake: what they truly hold, and what other engines and people do to them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from promises import Rows
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate

from frazil import Settings
from frazil.core.names import TopicName
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.schema import table_of
from parts.table_rewrites import expire, remove_unneeded_files, rewrite


class LakeHands:
    """Looks at tables by PyIceberg alone, without Frazil's own reading."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalog = open_catalog(settings)
        self._partial: set[int] = set()
        """Snapshots within a commit of PyIceberg, which deletes and appends: to go back to one is to delete rows."""
        self.quiet: Callable[[], AbstractContextManager[None]] = nullcontext
        """Within it no fault of the test comes up: the oracle sees what is there."""

    def table(self, topic: str) -> Table | None:
        try:
            with self.quiet():
                return self._catalog.load_table(table_of(TopicName.parse(topic))[0].identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def rows(self, topic: str) -> Rows:
        """What the table holds now; nothing if its files can't be read."""
        table = self.table(topic)
        if table is None:
            return []
        try:
            with self.quiet():
                found = table.scan(selected_fields=("_offset", "_payload")).to_arrow()
        except (OSError, ValueError):
            return []
        return sorted(zip(found["_offset"].to_pylist(), found["_payload"].to_pylist(), strict=True))

    def log_ids(self, topic: str) -> set[str]:
        """The logs that the table has, or had, rows of."""
        table = self.table(topic)
        found = () if table is None else (re.fullmatch(r"frazil\.(.+)\.end", key) for key in table.metadata.properties)
        return {match[1] for match in found if match is not None}

    def end(self, topic: str, log_id: str) -> int:
        """How far the table says that it has a log."""
        table = self.table(topic)
        return 0 if table is None else int(table.metadata.properties.get(f"frazil.{log_id}.end", 0))

    def accepted(self, topic: str, log_id: str) -> set[int]:
        """Offsets that a person has accepted as missing."""
        table = self.table(topic)
        text = "" if table is None else table.metadata.properties.get(f"frazil.{log_id}.gaps", "")
        ranges = (map(int, each.split("-")) for each in text.split(",") if each)
        return {offset for start, end in ranges for offset in range(start, end)}

    # --- what other engines may do at any time

    def compact(self, topic: str, seed: int, cuts: int) -> None:
        table = self.table(topic)
        if table is not None:
            before = {each.snapshot_id for each in table.snapshots()}
            rewrite(table, "_offset >= 0", seed, cuts)
            self._partial.update(each.snapshot_id for each in table.snapshots() if each.snapshot_id not in before)
            self._partial.discard(table.metadata.current_snapshot_id or 0)

    def expire(self, topic: str, kept: int) -> None:
        table = self.table(topic)
        if table is not None:
            expire(table, kept)

    def remove_unneeded_files(self, topic: str) -> None:
        table = self.table(topic)
        if table is not None:
            remove_unneeded_files(table)

    # --- what takes rows away

    def roll_back(self, topic: str, steps: int) -> bool:
        """To an older snapshot that was once the table; returns whether there was one."""
        table = self.table(topic)
        found = [] if table is None else [each.snapshot_id for each in table.snapshots()]
        snapshots = [each for each in found if each not in self._partial]
        if table is None or len(snapshots) < 2:
            return False
        target = snapshots[max(0, len(snapshots) - 1 - steps)]
        if target == table.metadata.current_snapshot_id:
            return False
        back = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=target)
        self._catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (back,))
        return True

    def delete(self, topic: str, condition: str) -> None:
        table = self.table(topic)
        if table is not None:
            table.delete(condition)

    def drop(self, topic: str) -> bool:
        if self.table(topic) is None:
            return False
        with self.quiet():
            self._catalog.drop_table(table_of(TopicName.parse(topic))[0].identifier)
        return True

    # --- the catalog as a file

    @property
    def _file(self) -> Path:
        file = self._settings.embedded_catalog
        assert file is not None
        return file

    def back_up(self, target: Path) -> None:
        self._catalog.engine.dispose()  # type: ignore[attr-defined]
        shutil.copy(self._file, target)

    def restore(self, source: Path) -> None:
        self._catalog.engine.dispose()  # type: ignore[attr-defined]
        shutil.copy(source, self._file)

    def close(self) -> None:
        self._catalog.engine.dispose()  # type: ignore[attr-defined]
