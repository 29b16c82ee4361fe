"""Delete a tenant with everything that it has, in steps that can be repeated until nothing is left.

    1. check       topics in use, tables that are not the tenant's: refused before anything is changed
    2. mark        the record says that it is being deleted: no broker accepts anything for it any more
    3. keys        keys and bindings that are confined to the tenant
    4. topics      with their rows, subscriptions and objects; of a cluster, each broker deletes its own
    5. tables      with their files
    6. records     namespaces and schemas
    7. prove       look for all of it again, in the stores themselves; what is found starts another round
    8. forget      the notes and the record of the tenant

What is deleted is noted before, so a deletion that was interrupted goes on when it is asked for again.

Several calls, and several brokers, may delete a tenant at once, and one of them is the first that sees it end. Then the
name may be used again: each of the others looks, before every step, whether the tenant is still the one to delete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from frazil.broker.store.records import users_of
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, NotOwner, TenantInUse, TenantNotFound, TopicNotFound
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.meta.store import KeyAt
from frazil.node.access.directory import AccessDirectory
from frazil.node.telemetry.deletion.grants import delete_grants, grants_left
from frazil.node.telemetry.deletion.notes import DeletionNotes
from frazil.node.telemetry.deletion.records import records_of, records_of_logs, removable
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.scopes import is_of
from frazil.node.telemetry.tenants import Tenant, tenant_key

if TYPE_CHECKING:
    from frazil.lake.maintenance.table_purge import TablePurge

TABLES = frozenset(
    {
        *("traces", "logs", "metrics", "metrics_gauge", "metrics_sum", "metrics_histogram"),
        *("metrics_exponential_histogram", "metrics_summary"),
        *("traces__errors", "logs__errors", "metrics__errors"),
    }
)
"""Tables that may be there before the first rows are."""
LEFT_SHOWN_MAX = 100
_PAUSE_S = 0.2


class OwnTopics(Protocol):
    """The topics that this process can delete. All calls block."""

    def names(self) -> Sequence[TopicName]: ...

    def log_id(self, name: TopicName) -> str: ...

    def log_rows(self, name: TopicName) -> int | None: ...

    def delete(self, name: TopicName, *, force: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicsOfAll:
    """The topics of this process, and the names of those of the whole cluster."""

    own: OwnTopics
    everywhere: Callable[[], Collection[TopicName]]

    def of(self, tenant: str) -> list[TopicName]:
        return sorted({one for one in (*self.own.names(), *self.everywhere()) if is_of(tenant, one)})


class TenantDeletion:
    """All calls block, up to the limit that they are given."""

    def __init__(self, settings: Settings, directory: TenantDirectory, topics: TopicsOfAll, clock: Clock) -> None:
        self._settings = settings
        self._directory = directory
        self._store = directory.store
        self._topics = topics
        self._clock = clock
        self._pause = threading.Event()

    def delete(self, tenant: str, *, force: bool, seconds_max: float) -> dict[str, Any]:
        """Delete a tenant; call it again until the answer says `done`. The answer says what was deleted, and what is
        left.

        Raises `TenantNotFound`; `TenantInUse` unless `force` is set; `TableRefused`. Then nothing was changed.
        """
        purge = self._purge()
        if self._directory.read(tenant).deleting_us is None:
            if not force:
                self._check_unused(tenant)
            if purge is not None:
                purge.plan(_in(tenant), TABLES)
        marked = self._directory.begin_deletion(tenant, self._clock.now_us())
        notes, until_us = DeletionNotes(self._store, tenant), self._clock.monotonic_us() + int(seconds_max * 1_000_000)
        while True:
            self._round(marked, notes, purge)
            left = self._left(tenant, notes, purge)
            if not left or self._clock.monotonic_us() >= until_us:
                break
            self._pause.wait(_PAUSE_S)
        report = {"tenant": tenant, "done": not left, **_deleted(notes), "left": left[:LEFT_SHOWN_MAX]}
        if not left:
            if not notes.remove_all(self._must_be(marked)):
                raise TenantNotFound(tenant)  # another call was faster
            self._directory.forget(tenant)
        return report

    def delete_own_topics(self, marked: Tenant) -> bool:
        """Delete the topics of a tenant that this process owns; returns whether all of them are gone.

        `marked` is its record, as it was marked. Raises `TenantNotFound` once its deletion has ended.
        """
        tenant, left = marked.name, False
        notes = DeletionNotes(self._store, tenant)
        for name in [one for one in self._topics.own.names() if is_of(tenant, one)]:
            self._must_be(marked)
            left = not self._delete_topic(notes, name) or left
        return not left

    def _must_be(self, marked: Tenant) -> KeyAt:
        """Return where the record of the tenant is; raises `TenantNotFound` if it is gone, or that of another tenant
        of this name."""
        key = tenant_key(marked.name)
        entry = self._store.get(key)
        now = None if entry is None else Tenant.decode(marked.name, entry.value)
        if entry is None or now is None or (now.created_us, now.deleting_us) != (marked.created_us, marked.deleting_us):
            raise TenantNotFound(marked.name)
        return KeyAt(key, entry.revision)

    # --- before

    def _check_unused(self, tenant: str) -> None:
        users = [users_of(self._store, name) for name in self._topics.of(tenant)]
        subscriptions, producers = sum(one[0] for one in users), sum(one[1] for one in users)
        if subscriptions or producers:
            raise TenantInUse(tenant, subscriptions, producers)

    def _purge(self) -> TablePurge | None:
        """Return None if there is no lake."""
        embedded = self._settings.embedded_catalog
        if self._settings.data is None or (embedded is not None and not embedded.exists()):
            return None
        with needs():
            from frazil.lake.maintenance.table_purge import TablePurge
        return TablePurge(self._settings)

    # --- one round

    def _round(self, marked: Tenant, notes: DeletionNotes, purge: TablePurge | None) -> None:
        tenant = marked.name
        self._must_be(marked)
        delete_grants(AccessDirectory(self._store, follows=False), self._clock, tenant, notes)
        self.delete_own_topics(marked)
        if purge is not None and not self._topics.of(tenant):  # else the mover makes them again
            self._purge_tables(marked, notes, purge)
        keys = removable(self._store, tenant)
        if keys:
            self._store.delete_all(keys, only_at=self._must_be(marked))

    def _delete_topic(self, notes: DeletionNotes, name: TopicName) -> bool:
        topics = self._topics.own
        try:
            log_id = topics.log_id(name)
        except FrazilError:
            log_id = None  # without a log, or one that cannot be opened
        notes.log(name, log_id, topics.log_rows(name))
        try:
            topics.delete(name, force=True)
        except NotOwner:
            return False
        except TopicNotFound:
            pass  # the base of partitions that are gone by now, or deleted by another call
        return True

    def _purge_tables(self, marked: Tenant, notes: DeletionNotes, purge: TablePurge) -> None:
        from frazil.lake.maintenance.table_purge import PlannedPurge
        from frazil.lake.tables.schema import TableName

        for planned in purge.plan(_in(marked.name), TABLES):
            notes.table(*planned.table.identifier, planned.location)
        namespaces = set()
        for name, note in notes.tables().items():
            table = TableName(*name.split("/"))
            self._must_be(marked)
            gone = purge.purge(PlannedPurge(table, note["location"]))
            if gone.files:
                notes.purged(*table.identifier, note["location"], gone.files, gone.bytes)
            namespaces.add(table.namespace)
        purge.drop_namespaces(namespaces)

    # --- the proof

    def _left(self, tenant: str, notes: DeletionNotes, purge: TablePurge | None) -> list[str]:
        """Return what the stores still have of a tenant."""
        left = [f"topic {name}" for name in self._topics.of(tenant)]
        if purge is not None:
            left += purge.left(_in(tenant), [note["location"] for note in notes.tables().values()])
        left += grants_left(AccessDirectory(self._store, follows=False), tenant)
        found = [*records_of(self._store, tenant), *records_of_logs(self._store, notes.logs())]
        return left + [f"record {key}" for key in found]


def _in(tenant: str) -> Callable[[str], bool]:
    return lambda namespace: namespace.startswith(f"{tenant}.")


def _deleted(notes: DeletionNotes) -> dict[str, Any]:
    tables: Mapping[str, Mapping[str, Any]] = notes.tables()
    return {
        "topics": [{"topic": one["topic"], "log_id": log, "rows": one["rows"]} for log, one in notes.logs().items()],
        "tables": [{"table": name.replace("/", "."), **one} for name, one in tables.items()],
        "keys": [{"id": key_id, **one} for key_id, one in notes.keys().items()],
        "bindings": list(notes.bindings().values()),
    }
