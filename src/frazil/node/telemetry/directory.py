"""The directory of tenants: their records in the metadata store, followed by a watch.

Each change is a compare-and-set. A change by any process is effective here within a second. While the store is
unavailable, the last known state applies.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from frazil.core.errors import InvalidInput, QuotaExceeded, TenantExists, TenantNotFound, TryLater
from frazil.core.settings import Settings
from frazil.core.settings.telemetry import TenantLimits
from frazil.meta.opening import has_meta, open_meta
from frazil.meta.record_follower import RecordFollower
from frazil.meta.store import ABSENT, MetaStore, StoredEntry
from frazil.node.telemetry.tenants import DATASETS_MAX, TENANTS, TENANTS_MAX, Tenant, UnreadableTenant, tenant_key

TRIES_MAX = 20
RETRY_AFTER_MS = 1_000

_log = logging.getLogger("frazil.telemetry")

OnChange = Callable[[str, Tenant | None, Tenant | None], None]
"""Called with the name of a tenant, its record before and now, in any thread. It must not block or change a tenant."""


def _ignore(name: str, before: Tenant | None, now: Tenant | None) -> None:
    pass


class TenantDirectory:
    """The current state, and changes to it. Any thread may call it; changes block."""

    def __init__(self, store: MetaStore, *, follows: bool = True, on_change: OnChange = _ignore) -> None:
        """Load the state. `follows`: a thread keeps it current; without, it is that of the moment."""
        self.store = store
        self._on_change = on_change
        self._tenants: Mapping[str, Tenant] = {}
        self._follower = RecordFollower(store, TENANTS, self, what="tenants", log=_log)
        if follows:
            self._follower.start()

    # --- reading

    def get(self, name: str) -> Tenant | None:
        """Return a tenant as last seen. Reads memory."""
        return self._tenants.get(name)

    def all(self) -> list[Tenant]:
        return sorted(self._tenants.values(), key=lambda one: one.name)

    def read(self, name: str) -> Tenant:
        """Return a tenant as it is stored now; raises `TenantNotFound`."""
        entry = self.store.get(tenant_key(name))
        if entry is None:
            raise TenantNotFound(name)
        return Tenant.decode(name, entry.value)

    def is_there(self, tenant: Tenant) -> bool:
        """Whether the same tenant is stored now, and nobody deletes it."""
        try:
            now = self.read(tenant.name)
        except TenantNotFound:
            return False
        return now.deleting_us is None and now.created_us == tenant.created_us

    # --- changes

    def create(self, tenant: Tenant) -> None:
        """Store a new tenant; raises `TenantExists`."""
        if len(self._tenants) >= TENANTS_MAX:
            raise InvalidInput(f"tenant: there are {TENANTS_MAX}, and no more are kept; delete some", field="tenant")
        key, value = tenant_key(tenant.name), tenant.encode()
        revision = self.store.put_if(key, value, ABSENT)
        if revision is None:
            with contextlib.suppress(TenantNotFound):  # deleted meanwhile: when the call wrote, the tenant existed
                is_being_deleted = self.read(tenant.name).deleting_us is not None
                raise TenantExists(tenant.name, is_being_deleted=is_being_deleted)
            raise TenantExists(tenant.name)
        self._follower.apply(key, value, revision)

    def change(self, name: str, changed: Callable[[Tenant], Tenant]) -> Tenant:
        """Store what `changed` makes of a tenant; raises `TenantNotFound`. Repeats it if another caller was faster."""
        key = tenant_key(name)
        for _ in range(TRIES_MAX):
            entry = self.store.get(key)
            if entry is None:
                raise TenantNotFound(name)
            known = Tenant.decode(name, entry.value)
            wanted = changed(known)
            if wanted == known:
                self._follower.apply(key, entry.value, entry.revision)
                return known
            revision = self.store.put_if(key, wanted.encode(), entry.revision)
            if revision is not None:
                self._follower.apply(key, wanted.encode(), revision)
                return wanted
        raise TryLater(f"the tenant {name} is changed by others all the time; try again")

    def add_dataset(self, name: str, dataset: str, default: TenantLimits, now_us: int | None) -> Tenant:
        """Add a dataset to a tenant; with `now_us`, the tenant is created if there is none.

        Raises `TenantNotFound`, also for one that is being deleted, and `QuotaExceeded` beyond its limit of datasets.
        """

        def added(tenant: Tenant) -> Tenant:
            if tenant.deleting_us is not None:
                raise TenantNotFound(name)
            if dataset in tenant.datasets:
                return tenant
            limit = min(tenant.limits_over(default).datasets or DATASETS_MAX, DATASETS_MAX)
            if len(tenant.datasets) >= limit:
                raise QuotaExceeded(f"tenant:{name}", "datasets", limit, RETRY_AFTER_MS)
            return tenant.with_dataset(dataset)

        if now_us is not None and self.get(name) is None:
            with contextlib.suppress(TenantExists):
                self.create(Tenant(name, now_us))
        return self.change(name, added)

    def begin_deletion(self, name: str, now_us: int) -> Tenant:
        """Mark a tenant as being deleted: nothing is accepted for it any more."""
        return self.change(name, lambda one: one if one.deleting_us is not None else replace(one, deleting_us=now_us))

    def forget(self, name: str) -> None:
        """Apply the deletion of a record, which the caller has deleted."""
        self._follower.apply_deletion(tenant_key(name))

    def close(self) -> None:
        """End the watch. The store stays open: the one who opened it closes it."""
        self._follower.close()

    # --- the state that the follower keeps current

    def load(self, entries: Sequence[StoredEntry]) -> None:
        read = {(name := entry.key.removeprefix(TENANTS)): _read(name, entry.value) for entry in entries}
        before = self._tenants
        now = self._tenants = {name: one for name, one in read.items() if one is not None}
        for name in before.keys() | now.keys():
            self._note(name, before.get(name), now.get(name))

    def apply(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(TENANTS)
        tenant = None if value is None else _read(name, value)
        before = self._tenants.get(name)
        others = {one: value for one, value in self._tenants.items() if one != name}
        self._tenants = others if tenant is None else {**others, name: tenant}
        self._note(name, before, tenant)

    def _note(self, name: str, before: Tenant | None, now: Tenant | None) -> None:
        if before != now:
            self._on_change(name, before, now)


def _read(name: str, value: bytes) -> Tenant | None:
    try:
        return Tenant.decode(name, value)
    except UnreadableTenant as error:
        _log.warning("%s; its requests are refused", error)
        return None


def read_tenant(settings: Settings, name: str) -> Tenant | None:
    """Return one tenant as it is stored now, for a process that follows none; None if there is none."""
    if not has_meta(settings):
        return None
    with contextlib.closing(open_meta(settings)) as store:
        entry = store.get(tenant_key(name))
        return None if entry is None else Tenant.decode(name, entry.value)
