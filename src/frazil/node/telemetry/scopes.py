"""Which tenant a resource or a scope of rights belongs to.

Everything whose namespace begins with `{tenant}.` is the tenant's. A scope that begins with `/{tenant}.` covers nothing
else: names of namespaces have no slash, and names of tenants have no dot.
"""

from __future__ import annotations

import re
from functools import lru_cache

from frazil.core.access import Resource, ResourceKind
from frazil.core.names import TopicName
from frazil.telemetry.signals import NAME_LENGTH_MAX, check_name

_OF_ONE = re.compile(rf"/([a-z0-9_][a-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}})\.", re.ASCII)
_OF_NONE = re.compile(r"/[^*/]*/|/?[^*/]*\Z", re.ASCII)
_OWNED = re.compile(rf"([a-z0-9_][a-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}})\..+", re.ASCII)


def is_own(tenant: str) -> bool:
    """Whether a tenant is Frazil's own, which nobody else may create or write to."""
    return tenant.startswith("_")


def scope_of(tenant: str) -> str:
    """Return the scope of everything that belongs to a tenant."""
    check_name(tenant, "tenant")
    return f"/{tenant}.*/*"


def resource_of(tenant: str) -> Resource:
    """Return the resource that stands for all namespaces of a tenant: only its scope, and wider ones, cover it."""
    return Resource(ResourceKind.NAMESPACE, f"/{tenant}.*")


def tenant_of_scope(scope: str) -> str | None:
    """Return the tenant that a scope is confined to; None if it covers resources of others too."""
    found = _OF_ONE.match(scope)
    return None if found is None else found[1]


def is_of_no_tenant(scope: str) -> bool:
    """Whether a scope covers nothing of any tenant: as `/shop/*`, the server, or one schema."""
    return tenant_of_scope(scope) is None and _OF_NONE.match(scope) is not None


@lru_cache(maxsize=16_384)
def tenant_of_namespace(namespace: str) -> str | None:
    """Return the tenant that owns a namespace, existing or not; None for a namespace that no tenant can own."""
    found = _OWNED.fullmatch(namespace)
    return None if found is None else found[1]


def is_of(tenant: str, topic: TopicName) -> bool:
    return topic.namespace.startswith(f"{tenant}.")
