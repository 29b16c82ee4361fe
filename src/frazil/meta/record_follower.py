"""Follow the records below a prefix of the metadata store: load them all, then apply each change once.

A change by any process is applied here within a second, and one of this process at once. While the store is unavailable
the last known state applies. After a gap in the changes (compacted, or the store was restored) all is loaded again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from frazil.core.errors import Closed, FrazilError
from frazil.meta.store import ABSENT, Listing, MetaStore, StoredEntry, Watch

_PAUSE_S = 0.2
_JOIN_S_MAX = 5.0
_WATCH_MS_MAX = 1_000


class FollowedState(Protocol):
    """What the records mean. It is called by one thread at a time, and must not block."""

    def load(self, entries: Sequence[StoredEntry]) -> None:
        """Replace the state: these are all records."""

    def apply(self, key: str, value: bytes | None) -> None:
        """Change the state: this is now the value of a record, or None if it was deleted."""


class RecordFollower:
    def __init__(self, store: MetaStore, prefix: str, state: FollowedState, *, what: str, log: logging.Logger) -> None:
        """Load the state. `what` names the records in log lines."""
        self._store, self._prefix, self._state = store, prefix, state
        self._what, self._log = what, log
        self._guard = threading.Lock()
        self._revisions: dict[str, int] = {}
        self._followed = ABSENT
        """All changes up to this revision are in the state."""
        self._watch: Watch | None = None
        self._ended = threading.Event()
        revision = self._load(store.snapshot(prefix))
        name = f"frazil-follow-{prefix.strip('/')}"
        self._thread = threading.Thread(target=self._follow, args=(revision,), name=name, daemon=True)

    def start(self) -> None:
        """Keep the state current in a thread."""
        self._thread.start()

    def close(self) -> None:
        """End the watch. The store stays open: the one who opened it closes it."""
        self._ended.set()
        with self._guard:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S_MAX)

    def apply(self, key: str, value: bytes | None, revision: int) -> None:
        """Apply a change that this process has made. A deletion carries the revision of the record that it deleted."""
        self._apply(key, value, revision, is_final=False)

    def apply_deletion(self, key: str) -> None:
        """Apply the deletion of a record as it was last seen."""
        with self._guard:
            revision = self._revisions.get(key, ABSENT)
        self.apply(key, None, revision)

    def _load(self, listing: Listing) -> int:
        with self._guard:
            self._revisions = {entry.key: entry.revision for entry in listing.entries}
            self._followed = listing.revision
            self._state.load(listing.entries)
        return listing.revision

    def _apply(self, key: str, value: bytes | None, revision: int, *, is_final: bool) -> None:
        """Apply a change unless a newer one is known: a change of this process comes again through the watch.

        Only the watch knows the revision of a deletion (`is_final`). A change of this process that the watch has
        delivered already may be undone since: it is not applied again.
        """
        with self._guard:
            if is_final:
                self._followed = max(self._followed, revision)
            elif value is not None and revision <= self._followed:
                return
            known = self._revisions.get(key, ABSENT)
            if revision < known or (revision == known and value is not None):
                return
            if value is None and is_final:
                self._revisions.pop(key, None)
            else:
                self._revisions[key] = revision
            self._state.apply(key, value)

    def _follow(self, revision: int) -> None:
        is_logged = False
        while not self._ended.is_set():
            try:
                self._follow_from(revision)
            except Closed:
                return
            except FrazilError as error:  # compacted, restored from a backup, or unavailable
                if not is_logged:
                    self._log.warning("changes of %s are not seen: %s; reading all again", self._what, error)
                is_logged = True
            if self._ended.wait(_PAUSE_S):
                return
            try:
                revision = self._load(self._store.snapshot(self._prefix))
            except Closed:
                return
            except FrazilError:
                continue  # the last known state applies
            is_logged = False

    def _follow_from(self, revision: int) -> None:
        with self._store.watch(self._prefix, revision) as watch:
            with self._guard:
                self._watch = watch
            while not self._ended.is_set():
                change = watch.next(_WATCH_MS_MAX)
                if change is not None:
                    self._apply(change.key, change.value, change.revision, is_final=True)
