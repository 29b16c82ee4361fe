"""The quota of stored bytes: rows are charged to the creator of their topic.

The logs of a principal are measured in a thread, at most once a second and only while rows arrive; between two
measurements, accepted rows are added. So a check is a comparison, and the last batch may exceed the quota by its size.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from frazil.core.clock import Clock
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.log.topic_log import TopicLog
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.quotas import TRACKED_MAX, Quotas
from frazil.node.access.topic_quotas.claims import TopicClaims, is_of_log

MEASURED_AGAIN_US = 1_000_000


class StoredAccount:
    """The stored bytes of one principal."""

    __slots__ = ("added", "measured", "measured_us", "owner", "waiting")

    def __init__(self, owner: Principal, now_us: int) -> None:
        self.owner = owner
        self.measured = 0
        self.added = 0
        """Bytes that were accepted since the measurement began."""
        self.measured_us = now_us
        self.waiting = False
        """Whether a measurement is due in the thread."""


class StoredQuota:
    """The accounts of all principals. Any thread may call it; `close` it last."""

    def __init__(self, directory: AccessDirectory, quotas: Quotas, claims: TopicClaims, clock: Clock) -> None:
        self._directory = directory
        self._quotas = quotas
        self._claims = claims
        self._clock = clock
        self._guard = threading.Lock()
        self._accounts: dict[str, StoredAccount] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-stored-quota")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def owner(self, name: TopicName, is_of_log: Callable[[str | None], bool]) -> Principal | None:
        """Return the principal with this quota that created the topic; None if rows are charged to nobody."""
        found = self._directory.creators.of_topic(name)
        if found is None or not found.made(name, is_of_log):
            return None
        owner = Principal(found.principal)
        return None if self._quotas.limits(owner).stored_bytes is None else owner

    def charge(self, who: Principal, log: TopicLog) -> TopicCharge | None:
        """Return what charges the rows of one caller for one log; None if they are charged to nobody. Blocks."""
        owner = None if who is LOCAL else self.owner(log.name, partial(is_of_log, log))
        return None if owner is None else TopicCharge(self, self.account(owner), who, str(log.name))

    def known(self, owner: Principal) -> StoredAccount | None:
        """Return an account that was measured before."""
        return self._accounts.get(owner.name)

    def account(self, owner: Principal) -> StoredAccount:
        """Return the account, measured now if it was not before. Blocks."""
        found = self._accounts.get(owner.name)
        if found is not None:
            return found
        made = StoredAccount(owner, self._clock.monotonic_us())
        self._measure(made)
        with self._guard:
            if len(self._accounts) >= TRACKED_MAX:
                del self._accounts[next(iter(self._accounts))]
            return self._accounts.setdefault(owner.name, made)

    def check(self, account: StoredAccount, who: Principal, topic: str) -> None:
        """Raise `QuotaExceeded` if the principal may store no more. Begins a measurement if the last one is old."""
        if self._clock.monotonic_us() - account.measured_us >= MEASURED_AGAIN_US:
            self._measure_soon(account)
        shown = None if who.name == account.owner.name else f"the creator of {topic}"
        self._quotas.check_stored(account.owner, account.measured + account.added, shown)

    def add(self, account: StoredAccount, size_bytes: int) -> None:
        """Count accepted rows until the next measurement."""
        with self._guard:
            account.added += size_bytes

    def _measure_soon(self, account: StoredAccount) -> None:
        with self._guard:
            if account.waiting:
                return
            account.waiting = True
        with contextlib.suppress(RuntimeError):  # closed: the server stops
            self._thread.submit(self._measure, account)

    def _measure(self, account: StoredAccount) -> None:
        before = account.added
        try:
            records = self._directory.creators.of_principal(account.owner.name)
            logs = [log for one in records for log in self._claims.logs_of(one).values() if log is not None]
            measured = sum(segment.used_bytes for log in logs for segment in log.segments)
            measured += sum(log.queued_bytes for log in logs)
            with self._guard:
                account.measured = measured
                account.added -= before
        finally:
            account.measured_us = self._clock.monotonic_us()
            account.waiting = False


class TopicCharge:
    """Charges the rows of one caller for one topic."""

    __slots__ = ("_account", "_quota", "_topic", "_who")

    def __init__(self, quota: StoredQuota, account: StoredAccount, who: Principal, topic: str) -> None:
        self._quota = quota
        self._account = account
        self._who = who
        self._topic = topic

    def check(self) -> None:
        """Raise `QuotaExceeded` if the creator of the topic may store no more."""
        self._quota.check(self._account, self._who, self._topic)

    def add(self, size_bytes: int) -> None:
        """Count accepted rows."""
        self._quota.add(self._account, size_bytes)
