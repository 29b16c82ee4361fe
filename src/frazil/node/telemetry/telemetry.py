"""The interface of a Node for telemetry: where a caller's requests go, and their way into the log.

    place     the tenant and the dataset of a request, by the caller's rights and its headers
    existing  the same for a caller that reads
    export    append a request to the topic of its signal; returns once it is durable
    table     the topic of a table that the tenant fills itself; `table_publisher` puts record batches into it
    tenants   create, change, list and delete tenants

While `telemetry.enabled` is not set there are no tenants and no limits: without security, any tenant is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from frazil.core import access
from frazil.core.access import Action, Resource
from frazil.core.errors import DatasetNotFound, InvalidInput, TelemetryOff, TenantNotFound, TryLater
from frazil.core.principal import Principal
from frazil.node.request_ids import peer_of_call
from frazil.node.telemetry.places import TenantPlace, route_of
from frazil.node.telemetry.publishing import RequestPublishers, RequestTarget
from frazil.node.telemetry.scopes import is_own
from frazil.node.telemetry.tables import TablePublisher, TableTarget
from frazil.telemetry.signals import DEFAULT_DATASET, Signal, check_name
from frazil.telemetry.tables import table_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.node.node import Node
    from frazil.node.telemetry.admin import TenantAdmin
    from frazil.node.telemetry.opening import TenantParts
    from frazil.node.telemetry.tenants import Tenant

DEFAULT_TENANT = "default"
"""Of requests that name none, while security is off."""
TENANT_HEADER, DATASET_HEADER = "x-frazil-tenant", "x-frazil-dataset"


class Telemetry:
    """Used on one event loop, but for `tenants`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._requests = RequestPublishers(node, self.admit)

    def tenants(self, who: Principal) -> TenantAdmin:
        """Return the interface to tenants. All its calls block; raises `TelemetryOff`."""
        return self._parts_or_off().admin.telling(partial(self._node.record_change, who, Action.GRANT))

    def place(self, who: Principal, tenant: str | None, dataset: str | None) -> TenantPlace:
        """Return the tenant and the dataset of a request by its headers, which may be missing. Does not wait.

        A principal that belongs to one tenant needs no header. Raises `PermissionDenied` for a tenant that the caller
        may not send to, whether or not it exists, and `TenantNotFound` for one that it may and that does not exist.
        """
        return self._placed(who, tenant, dataset, Action.PRODUCE)

    def existing(self, who: Principal, tenant: str | None, dataset: str | None) -> TenantPlace:
        """Return the same for a caller that reads; raises `DatasetNotFound` too. Does not wait."""
        place, parts = self._placed(who, tenant, dataset, Action.READ), self._parts()
        known = None if parts is None else parts.directory.get(place.tenant)
        if parts is not None and (known is None or place.dataset not in known.datasets):
            raise DatasetNotFound(*place)
        return place

    async def export(self, who: Principal, place: TenantPlace, signal: Signal, request: bytes, items: int) -> int:
        """Append a request, Protobuf with `items` spans, records or points, and return its offset once it is durable.

        Counts the bytes against the quotas of the caller and of the tenant; doors count requests. Raises `Overloaded`,
        `QuotaExceeded` and other `TryLater` with a hint when to send it again, `NotOwner` with the addresses of the
        owner, as `Node.publish` does, and `TenantNotFound`. A request that failed otherwise may be stored or not.
        """
        route = route_of(place, signal)
        self._node.must(who, Action.PRODUCE, route.resource)
        ownership = self._node.ownership(who)
        if ownership.is_clustered:
            ownership.must_own(route.topic)
        parts = self._parts()
        if parts is not None:
            self.check_there(place.tenant)
            parts.quotas.export(who, place.tenant, len(request))
        self._node.gate.transfer(who, len(request))
        return await self._requests.publish(RequestTarget(who, place, signal), request, items)

    def table(self, who: Principal, tenant: str | None, dataset: str | None, name: str, action: Action) -> TableTarget:
        """Return a table of a tenant by the headers of a call, which may be missing. Does not wait.

        Raises the same errors as `place`, and `InvalidName`.
        """
        asked = self._named(who, tenant, dataset)
        topic = table_topic(*asked, name)
        place = self._checked(who, asked, [access.topic(str(topic))], action)
        return TableTarget(place, topic)

    def table_publisher(self, who: Principal, target: TableTarget, schema: pa.Schema) -> TablePublisher:
        """Return a publisher of record batches of one schema; raises `SchemaMismatch`."""
        return TablePublisher(self._node, who, target, schema)

    def own_tenant(self, who: Principal) -> str | None:
        """Return the tenant that a caller belongs to; None if it may act for several, or while security is off."""
        parts = self._parts()
        return None if parts is None or not self._node.gate.is_on else parts.quotas.tenant(who)

    def check_there(self, name: str) -> None:
        """Raise `TenantNotFound` for a tenant that is being deleted, or that does not exist and is not created."""
        parts = self._parts()
        known = None if parts is None else parts.directory.get(name)
        if known is None:
            if parts is not None and not self._creates:
                raise TenantNotFound(name)
        elif known.deleting_us is not None:
            raise TenantNotFound(name)

    def admit(self, place: TenantPlace) -> Tenant | None:
        """Add a dataset to its tenant before its first topic is created; None if no tenant is known. Blocks.

        Raises `TenantNotFound`, and `QuotaExceeded` beyond the limit of datasets.
        """
        parts = self._parts()
        if parts is None:
            return None
        known, settings = parts.directory.get(place.tenant), self._node.settings.telemetry
        if known is not None and known.deleting_us is None and place.dataset in known.datasets:
            return known
        now_us = self._node.clock.now_us() if self._creates else None
        return parts.directory.add_dataset(place.tenant, place.dataset, settings.limits, now_us)

    def _placed(self, who: Principal, tenant: str | None, dataset: str | None, action: Action) -> TenantPlace:
        place = self._named(who, tenant, dataset)
        return self._checked(who, place, [route_of(place, signal).resource for signal in Signal], action)

    def _named(self, who: Principal, tenant: str | None, dataset: str | None) -> TenantPlace:
        parts = self._parts()
        if self._node.gate.is_on and parts is None:
            raise TelemetryOff
        place = TenantPlace(tenant or self._own(who, parts), dataset or DEFAULT_DATASET)
        check_name(place.tenant, "tenant")
        check_name(place.dataset, "dataset")
        return place

    def _checked(self, who: Principal, place: TenantPlace, any_of: Sequence[Resource], action: Action) -> TenantPlace:
        """Check that the caller may do something with one of the resources, and then that there is such a tenant."""
        gate = self._node.gate
        is_asked = gate.is_on or is_own(place.tenant)
        if is_asked and not any(gate.allows(who, action, one) for one in any_of):
            raise gate.refusal(who, action, any_of[0], "no role allows it, or one denies it", peer_of_call())
        self.check_there(place.tenant)
        return place

    @property
    def _creates(self) -> bool:
        return not self._node.gate.is_on and self._node.settings.telemetry.create_tenants

    def _own(self, who: Principal, parts: TenantParts | None) -> str:
        if not self._node.gate.is_on:
            return DEFAULT_TENANT
        own = None if parts is None else parts.quotas.tenant(who)
        if own is None:
            raise InvalidInput(f"{TENANT_HEADER}: name the tenant: your credentials do not", field=TENANT_HEADER)
        return own

    def _parts(self) -> TenantParts | None:
        return self._node.tenant_parts

    def _parts_or_off(self) -> TenantParts:
        found = self._parts()
        if found is None:
            if self._node.settings.telemetry.enabled:
                raise TryLater("the tenants are not open yet; try again")
            raise TelemetryOff
        return found
