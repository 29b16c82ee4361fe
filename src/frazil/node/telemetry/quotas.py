"""Quotas of tenants: what all principals of a tenant use together, and what its topics hold.

    requests, bytes, streams      of principals that belong to one tenant, at every door; and of every request of
                                  telemetry, from any sender
    stored bytes                  of the logs in its namespaces, from any publisher

Limits are those of the tenant's record at each call: a change is effective at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from frazil.core.clock import Clock
from frazil.core.errors import QuotaExceeded
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings.telemetry import TenantLimits
from frazil.node.access.quotas import RETRY_AFTER_MS, Bucket
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.members import Members
from frazil.node.telemetry.scopes import tenant_of_namespace

MEASURED_AGAIN_US = 1_000_000
TRACKED_MAX = 20_000
_NO_LIMITS = TenantLimits()

Measure = Callable[[str], int]
"""Returns the bytes in the logs of a tenant. Blocks."""


class Charge(Protocol):
    """Charges rows of one caller for one topic."""

    def check(self) -> None: ...

    def add(self, size_bytes: int) -> None: ...


class _TenantUse:
    """What one tenant uses now. Its buckets follow its limits."""

    __slots__ = ("_rates", "added", "buckets", "created_us", "measured", "measured_us", "streams", "waiting")

    def __init__(self, created_us: int) -> None:
        self.created_us = created_us
        """Of the tenant: the next one of its name begins anew."""
        self._rates: dict[str, int] = {}
        self.buckets: dict[str, Bucket] = {}
        self.streams = 0
        self.measured: int | None = None
        self.added = 0
        """Bytes that were accepted since the measurement began."""
        self.measured_us = 0
        self.waiting = False
        """Whether a measurement is due in the thread."""

    def bucket(self, quota: str, rate: int, now_us: int) -> Bucket:
        if self._rates.get(quota) != rate:
            self._rates[quota] = rate
            self.buckets[quota] = Bucket(rate, now_us)
        return self.buckets[quota]


class TenantQuotas:
    """The quotas of all tenants. Its methods may be called from any thread, and never wait."""

    def __init__(
        self,
        directory: TenantDirectory,
        default: TenantLimits,
        clock: Clock,
        measure: Measure,
        members: Members | None = None,
    ) -> None:
        """`members`: None while security is off."""
        self._directory = directory
        self._default = default
        self._clock = clock
        self._measure = measure
        self._members = members
        self._guard = threading.Lock()
        self._uses: dict[str, _TenantUse] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-tenant-quota")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def limits(self, tenant: str) -> TenantLimits:
        """Return what applies to a tenant; nothing to a namespace that only looks like one of a tenant."""
        found = self._directory.get(tenant)
        return _NO_LIMITS if found is None else found.limits_over(self._default)

    def tenant(self, who: Principal) -> str | None:
        """Return the tenant that a principal belongs to; None if it may act for several, or for none."""
        return None if self._members is None or who is LOCAL else self._members.tenant(who)

    # --- of a principal that belongs to one tenant, at any door

    def request(self, who: Principal) -> None:
        tenant = self.tenant(who)
        if tenant is not None:
            self._take(tenant, "requests_per_second", 1)

    def transfer(self, who: Principal, size_bytes: int) -> None:
        tenant = self.tenant(who)
        if tenant is not None:
            self._take(tenant, "bytes_per_second", size_bytes)

    def stream(self, who: Principal) -> AbstractContextManager[None]:
        tenant = self.tenant(who)
        limit = None if tenant is None else self.limits(tenant).connections
        return nullcontext() if tenant is None or limit is None else self._stream(tenant, limit)

    # --- of a request of telemetry

    def export(self, who: Principal, tenant: str, size_bytes: int) -> None:
        """Count a request for a tenant, unless the gate has counted it: the caller's is another, or none."""
        if self.tenant(who) != tenant:
            self._take(tenant, "requests_per_second", 1)
            self._take(tenant, "bytes_per_second", size_bytes)

    # --- stored bytes

    def charge(self, topic: TopicName, also: Charge | None = None) -> Charge | None:
        """Return what charges rows of a topic to the tenant that owns its namespace, and to `also`."""
        tenant = tenant_of_namespace(topic.namespace)
        return also if tenant is None else TenantCharge(self, tenant, also)

    def check_stored(self, tenant: str) -> None:
        """Raise `QuotaExceeded` if the topics of a tenant may hold no more. Measures them if the last one is old."""
        limit = self.limits(tenant).stored_bytes
        if limit is None:
            return
        use = self._use(tenant)
        if use.measured is None or self._clock.monotonic_us() - use.measured_us >= MEASURED_AGAIN_US:
            self._measure_soon(tenant, use)
        if (use.measured or 0) + use.added >= limit:
            raise QuotaExceeded(f"tenant:{tenant}", "stored_bytes", limit, RETRY_AFTER_MS)

    def add_stored(self, tenant: str, size_bytes: int) -> None:
        """Count accepted rows until the next measurement."""
        if self.limits(tenant).stored_bytes is not None:
            use = self._use(tenant)
            with self._guard:
                use.added += size_bytes

    def store(self, topic: TopicName, size_bytes: int) -> None:
        """Check a message for a topic, and count it before it is appended."""
        tenant = tenant_of_namespace(topic.namespace)
        if tenant is not None:
            self.check_stored(tenant)
            self.add_stored(tenant, size_bytes)

    def _take(self, tenant: str, quota: str, amount: int) -> None:
        limit: int | None = getattr(self.limits(tenant), quota)
        if limit is None:
            return
        use = self._use(tenant)
        with self._guard:
            now_us = self._clock.monotonic_us()
            wait_ms = use.bucket(quota, limit, now_us).take(amount, now_us)
        if wait_ms:
            raise QuotaExceeded(f"tenant:{tenant}", quota, limit, wait_ms)

    @contextmanager
    def _stream(self, tenant: str, limit: int) -> Iterator[None]:
        use = self._use(tenant)
        with self._guard:
            if use.streams >= limit:
                raise QuotaExceeded(f"tenant:{tenant}", "connections", limit, RETRY_AFTER_MS)
            use.streams += 1
        try:
            yield
        finally:
            with self._guard:
                use.streams -= 1

    def _use(self, tenant: str) -> _TenantUse:
        known = self._directory.get(tenant)
        created_us = 0 if known is None else known.created_us
        with self._guard:
            found = self._uses.get(tenant)
            if found is None or found.created_us != created_us:
                if len(self._uses) >= TRACKED_MAX:  # of tenants that are gone: there are not so many at once
                    idle = next((name for name, use in self._uses.items() if use.streams == 0), None)
                    self._uses.pop(idle or "", None)
                found = self._uses[tenant] = _TenantUse(created_us)
            return found

    def _measure_soon(self, tenant: str, use: _TenantUse) -> None:
        with self._guard:
            if use.waiting:
                return
            use.waiting = True
        with contextlib.suppress(RuntimeError):  # closed: the server stops
            self._thread.submit(self._measured, tenant, use)

    def _measured(self, tenant: str, use: _TenantUse) -> None:
        before = use.added
        try:
            measured = self._measure(tenant)
            with self._guard:
                use.measured = measured
                use.added -= before
        finally:
            use.measured_us = self._clock.monotonic_us()
            use.waiting = False


class TenantCharge:
    """Charges the rows for one topic to its tenant, and to another account."""

    __slots__ = ("_also", "_quotas", "_tenant")

    def __init__(self, quotas: TenantQuotas, tenant: str, also: Charge | None) -> None:
        self._quotas = quotas
        self._tenant = tenant
        self._also = also

    def check(self) -> None:
        self._quotas.check_stored(self._tenant)
        if self._also is not None:
            self._also.check()

    def add(self, size_bytes: int) -> None:
        self._quotas.add_stored(self._tenant, size_bytes)
        if self._also is not None:
            self._also.add(size_bytes)
