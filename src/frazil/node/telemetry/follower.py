"""What each broker does when a tenant changes: retention of its topics, and the deletion of those of a deleted tenant.

One thread does it, for the topics that this broker owns. What fails is tried again until it succeeds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from frazil.core.backoff import backoff, jittered
from frazil.core.errors import FrazilError, TenantNotFound, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings
from frazil.node.telemetry.deletion.deletion import OwnTopics, TenantDeletion
from frazil.node.telemetry.scopes import is_of
from frazil.node.telemetry.tenants import Tenant
from frazil.telemetry.signals import Signal

AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 0.5, 30.0
STOP_SECONDS_MAX = 5.0

_log = logging.getLogger("frazil.telemetry")


class KeptTopics(OwnTopics, Protocol):
    def retention(self, name: TopicName) -> RetentionSettings | None: ...

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None: ...


class TenantFollower:
    """`put` may be called from any thread, also before `start`."""

    def __init__(self, topics: KeptTopics, is_clustered: Callable[[], bool]) -> None:
        self._topics = topics
        self._is_clustered = is_clustered
        self._changed = threading.Condition()
        self._waiting: dict[str, Tenant] = {}
        self._ended = False
        self._failures = 0
        self._deletion: TenantDeletion | None = None
        self._thread = threading.Thread(target=self._work, name="frazil-tenant-follower", daemon=True)

    def start(self, deletion: TenantDeletion) -> None:
        self._deletion = deletion
        self._thread.start()

    def put(self, name: str, before: Tenant | None, now: Tenant | None) -> None:
        """Do what the change of a tenant asks for; nothing is done for its limits, which are read at each call."""
        is_new = now is not None and (
            before is None or before.retention != now.retention or before.deleting_us != now.deleting_us
        )
        with self._changed:
            self._waiting.pop(name, None)
            if now is not None and is_new:
                self._waiting[name] = now
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    def _work(self) -> None:
        while (tenant := self._next()) is not None:
            try:
                is_done = self._apply(tenant)
                self._failures = 0 if is_done else self._failures + 1
            except FrazilError as error:
                is_done, self._failures = False, self._failures + 1
                _log.warning("the change of the tenant %s is applied again: %s", tenant.name, error)
            if not is_done:
                self._again(tenant)

    def _next(self) -> Tenant | None:
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            return None if self._ended else self._waiting.pop(next(iter(self._waiting)))

    def _again(self, tenant: Tenant) -> None:
        """Put it behind the others, unless it has changed since."""
        wait = backoff(self._failures, first=AGAIN_SECONDS_MIN, limit=AGAIN_SECONDS_MAX)
        with self._changed:
            self._waiting.setdefault(tenant.name, tenant)
            self._changed.wait_for(lambda: self._ended, jittered(wait))

    def _apply(self, tenant: Tenant) -> bool:
        assert self._deletion is not None
        if tenant.deleting_us is not None:  # a server that is alone deletes them in the call
            try:
                return not self._is_clustered() or self._deletion.delete_own_topics(tenant)
            except TenantNotFound:  # it has ended, and the name may be another tenant's by now
                return True
        for name in self._topics.names():
            if is_of(tenant.name, name) and name.topic in tuple(Signal):
                self._keep(name, tenant.retention)
        return True

    def _keep(self, name: TopicName, retention: RetentionSettings | None) -> None:
        try:
            if self._topics.retention(name) != retention:
                self._topics.set_retention(str(name), retention)
        except TopicNotFound:
            _log.debug("%s was deleted before its retention was set", name)
