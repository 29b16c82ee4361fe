"""Quotas of callers: requests and bytes per second, concurrent streams, topics, stored bytes.

Rates are token buckets that hold one second. A batch that is larger than its bucket is taken when the bucket is full,
and the debt is paid back before the next one, so a large batch is slow but never refused for ever. Each caller has its
own buckets: one that used up its quota does not slow the others. This process itself has no limits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Protocol

from frazil.core.clock import Clock
from frazil.core.errors import QuotaExceeded
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings.security import QuotaSettings

TRACKED_MAX = 10_000
"""Callers whose use is remembered; the longest idle is forgotten first."""
RETRY_AFTER_MS = 1_000
"""Hint for quotas that no clock frees: streams, topics, stored bytes."""
_LOOKED_AT = 16
_SECOND_US = 1_000_000


class Bucket:
    """A token bucket that holds one second of its rate. It starts full, and may be in debt."""

    __slots__ = ("_at_us", "_left", "_rate")

    def __init__(self, rate: int, now_us: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at_us = now_us

    def take(self, amount: int, now_us: int) -> int:
        """Take an amount and return 0; or take nothing and return after how many milliseconds to try again."""
        self._refill(now_us)
        wanted = min(amount, self._rate)
        if self._left >= wanted:
            self._left -= amount
            return 0
        return max(1, -int(-(wanted - self._left) * 1_000 // self._rate))

    def is_full(self, now_us: int) -> bool:
        self._refill(now_us)
        return self._left >= self._rate

    def _refill(self, now_us: int) -> None:
        passed_us = max(0, now_us - self._at_us)
        self._at_us = now_us
        self._left = min(float(self._rate), self._left + passed_us * self._rate / _SECOND_US)


class _Use:
    """What one caller uses now."""

    __slots__ = ("limits", "requests", "streams", "transfer")

    def __init__(self, limits: QuotaSettings, now_us: int) -> None:
        self.limits = limits
        self.streams = 0
        self.requests = _bucket(limits.requests_per_second, now_us)
        self.transfer = _bucket(limits.bytes_per_second, now_us)

    def is_idle(self, now_us: int) -> bool:
        buckets = (self.requests, self.transfer)
        return self.streams == 0 and all(one is None or one.is_full(now_us) for one in buckets)


class SharedQuotas(Protocol):
    """Quotas that several callers have together."""

    def request(self, who: Principal) -> None: ...

    def transfer(self, who: Principal, size_bytes: int) -> None: ...

    def stream(self, who: Principal) -> AbstractContextManager[None]: ...


class Quotas:
    """The quotas of all callers. Its methods may be called from any thread, and never wait."""

    def __init__(
        self,
        default: QuotaSettings,
        by_name: Mapping[str, QuotaSettings],
        clock: Clock,
        tracked_max: int = TRACKED_MAX,
    ) -> None:
        """`by_name` replaces the default of single principals as a whole."""
        self._default = default
        self._by_name = dict(by_name)
        self._clock = clock
        self._tracked_max = tracked_max
        self._guard = threading.Lock()
        self._uses: OrderedDict[str, _Use] = OrderedDict()
        self.shared: SharedQuotas | None = None
        """Counted before the caller's own; set once, by the part that has them."""

    def limits(self, who: Principal) -> QuotaSettings:
        return self._by_name.get(who.name, self._default)

    def request(self, who: Principal) -> None:
        """Count a request; raises `QuotaExceeded`."""
        if self.shared is not None:
            self.shared.request(who)
        limit = self.limits(who).requests_per_second
        if limit is None or who is LOCAL:
            return
        with self._guard:
            now_us = self._clock.monotonic_us()
            bucket = self._use(who, now_us).requests
            wait_ms = 0 if bucket is None else bucket.take(1, now_us)
        if wait_ms:
            raise QuotaExceeded(who.name, "requests_per_second", limit, wait_ms)

    def transfer(self, who: Principal, size_bytes: int) -> None:
        """Count received or sent rows; raises `QuotaExceeded` before they are taken."""
        if self.shared is not None:
            self.shared.transfer(who, size_bytes)
        limit = self.limits(who).bytes_per_second
        if limit is None or who is LOCAL:
            return
        with self._guard:
            now_us = self._clock.monotonic_us()
            bucket = self._use(who, now_us).transfer
            wait_ms = 0 if bucket is None else bucket.take(size_bytes, now_us)
        if wait_ms:
            raise QuotaExceeded(who.name, "bytes_per_second", limit, wait_ms)

    def stream(self, who: Principal) -> AbstractContextManager[None]:
        """Count a stream while the context is open; raises `QuotaExceeded` when it is entered."""
        limit = self.limits(who).connections
        own = nullcontext() if limit is None or who is LOCAL else self._stream(who, limit)
        return own if self.shared is None else _both(self.shared.stream(who), own)

    def check_topic(self, who: Principal, count: int, more: int = 1, shown: str | None = None) -> None:
        """Refuse more topics to a principal that has created `count`; raises `QuotaExceeded`.

        `shown` is what a caller other than this principal gets to see in place of its name.
        """
        limit = self.limits(who).topics
        if limit is not None and who is not LOCAL and count + more > limit:
            raise QuotaExceeded(shown or who.name, "topics", limit, RETRY_AFTER_MS)

    def check_stored(self, who: Principal, size_bytes: int, shown: str | None = None) -> None:
        """Refuse more rows to a principal whose topics hold `size_bytes`; raises `QuotaExceeded`."""
        limit = self.limits(who).stored_bytes
        if limit is not None and who is not LOCAL and size_bytes >= limit:
            raise QuotaExceeded(shown or who.name, "stored_bytes", limit, RETRY_AFTER_MS)

    @property
    def limits_stored(self) -> bool:
        """Whether any principal has the quota `stored_bytes`."""
        return any(one.stored_bytes is not None for one in (self._default, *self._by_name.values()))

    @property
    def tracked(self) -> int:
        return len(self._uses)

    @contextmanager
    def _stream(self, who: Principal, limit: int) -> Iterator[None]:
        with self._guard:
            use = self._use(who, self._clock.monotonic_us())
            if use.streams >= limit:
                raise QuotaExceeded(who.name, "connections", limit, RETRY_AFTER_MS)
            use.streams += 1
        try:
            yield
        finally:
            with self._guard:
                use.streams -= 1

    def _use(self, who: Principal, now_us: int) -> _Use:
        found = self._uses.get(who.name)
        if found is None:
            if len(self._uses) >= self._tracked_max:
                self._forget_one(now_us)
            found = self._uses[who.name] = _Use(self.limits(who), now_us)
        else:
            self._uses.move_to_end(who.name)
        return found

    def _forget_one(self, now_us: int) -> None:
        """Forget the longest idle caller. One with open streams is never forgotten: their number is limited anyway."""
        oldest = list(islice(self._uses.items(), _LOOKED_AT))
        for name, use in oldest:
            if use.is_idle(now_us):
                del self._uses[name]
                return
        for name, use in self._uses.items():
            if use.streams == 0:
                del self._uses[name]
                return


@contextmanager
def _both(first: AbstractContextManager[None], second: AbstractContextManager[None]) -> Iterator[None]:
    with first, second:
        yield


def _bucket(rate: int | None, now_us: int) -> Bucket | None:
    return None if rate is None else Bucket(rate, now_us)
