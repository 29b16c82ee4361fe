"""Which tables a topic is moved to, and when: by the settings, and for telemetry by its tenant.

Tenants change while the mover runs. Their records are read again every few seconds.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.core.settings.topics import topic_rules
from frazil.log.info import LogInfo
from frazil.node.telemetry.opening import read_tenants
from frazil.node.telemetry.scopes import tenant_of_namespace
from frazil.node.telemetry.tenants import Tenant
from frazil.pipeline.move.moved_topic import MovedTopic
from frazil.pipeline.move.telemetry_tables import TelemetryTables
from frazil.telemetry.schemas import Lifted, LiftedFrom
from frazil.telemetry.signals import Signal, signal_of

READ_AGAIN_US = 2_000_000
_NO_TENANT = Tenant("", 0)

_log = logging.getLogger("frazil.pipeline")

ReadTenants = Callable[[], Mapping[str, Tenant]]
TopicOf = Callable[[LogInfo], MovedTopic]


class TenantRecords:
    """The records of tenants, as they were a few seconds ago.

    While they were never read, the topics of telemetry wait: their rows would lack lifted columns. Later the last known
    records are used.
    """

    def __init__(self, read: ReadTenants, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._known: Mapping[str, Tenant] | None = None
        self._read_us = -READ_AGAIN_US
        self._error: FrazilError | None = None

    def of(self, namespace: str) -> Tenant:
        now_us = self._clock.monotonic_us()
        if now_us - self._read_us >= READ_AGAIN_US:
            self._read_us = now_us
            self._refresh()
        if self._known is None:
            assert self._error is not None
            raise self._error
        return self._known.get(tenant_of(namespace), _NO_TENANT)

    def now(self) -> Mapping[str, Tenant]:
        """Read the records again."""
        self._read_us = self._clock.monotonic_us()
        self._refresh()
        if self._error is not None or self._known is None:
            assert self._error is not None
            raise self._error
        return self._known

    def _refresh(self) -> None:
        try:
            self._known, self._error = self._read(), None
        except FrazilError as error:
            if self._error is None:
                _log.warning("the tenants cannot be read, and are as they were: %s", error)
            self._error = error


class TopicsOfSettings:
    """Describes each log that the mover is to move."""

    def __init__(self, settings: Settings, clock: Clock, read: ReadTenants | None = None) -> None:
        self._settings = settings
        self._tenants = TenantRecords(read or (lambda: stored_tenants(settings)), clock)

    def of(self, info: LogInfo) -> MovedTopic:
        """Return the topic with its rules and tables; a topic of telemetry whose tenant is unknown has an error."""
        rules = self._settings.of_topic(info.topic)
        signal = _signal(info.topic, info.stored_schema)
        if signal is None or rules.sql is not None:
            return MovedTopic(info, rules)
        namespace = info.topic.namespace
        tenant, error = _NO_TENANT, None
        try:
            tenant = self._tenants.of(namespace)
        except FrazilError as unread:
            error = unread
        telemetry = self._settings.telemetry
        writer = self._settings.writer.model_copy(
            update={
                "flush_interval_ms": tenant.freshness_ms_over(telemetry),
                "max_memory_bytes": max(tenant.target_file_bytes or telemetry.target_file_bytes, 4 * 2**20),
            }
        )
        rules = topic_rules(self._settings.topics, writer, info.topic)
        tables = TelemetryTables(signal, namespace, lifted_of(tenant), rules.partitioning)
        return replace(MovedTopic(info, rules, tables), group=tenant_of(namespace), error=error)

    def has_tenant(self, namespace: str) -> bool:
        """Whether the tenant that owns a namespace is there now, and nobody deletes it; true if none can own it."""
        owner = tenant_of_namespace(namespace)
        known = None if owner is None else self._tenants.now().get(owner)
        return owner is None or (known is not None and known.deleting_us is None)


@functools.lru_cache(maxsize=16_384)
def _signal(topic: TopicName, stored_schema: bytes) -> Signal | None:
    return signal_of(topic, pa.ipc.read_schema(pa.py_buffer(stored_schema)))


def tenant_of(namespace: str) -> str:
    return namespace.partition(".")[0]


def lifted_of(tenant: Tenant | None) -> tuple[Lifted, ...]:
    """Return the attributes that have columns of their own in the tables of a tenant."""
    found = () if tenant is None else tenant.lifted
    return tuple(Lifted(LiftedFrom(one.source), one.key, one.column, one.type) for one in found)


def stored_tenants(settings: Settings) -> Mapping[str, Tenant]:
    """Return the tenants of the metadata store; none if this process has no store."""
    return read_tenants(settings)
