"""The scope of a tenant covers its namespaces and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.core import access
from frazil.core.access import Action, Resource, ResourceKind, matches
from frazil.core.names import TopicName
from frazil.node.access.roles import BUILT_IN, TENANT, RoleGrant, decide
from frazil.node.telemetry.scopes import (
    is_of,
    is_of_no_tenant,
    resource_of,
    scope_of,
    tenant_of_namespace,
    tenant_of_scope,
)

SCOPE = scope_of("acme")
OWN = ("/acme.default/traces", "/acme.x.y/t", "/acme.eu-1/metrics-part-3")
OTHERS = ("/acme2.x/traces", "/acme/traces", "/acm.e/traces", "/x.acme.y/traces", "/ACME.x/traces", "/bank.acme.x/t")


@pytest.mark.parametrize("name", OWN)
def test_the_scope_covers_the_namespaces_of_the_tenant(name: str) -> None:
    topic = TopicName.parse(name)
    assert matches(SCOPE, access.topic(name))
    assert matches(SCOPE, access.namespace(topic.namespace))
    assert matches(SCOPE, access.table(topic.namespace, topic.topic))
    assert matches(SCOPE, access.subscription(name, "a/b"))
    assert is_of("acme", topic)
    assert tenant_of_namespace(topic.namespace) == "acme"


@pytest.mark.parametrize("name", OTHERS)
def test_the_scope_covers_no_other_namespace(name: str) -> None:
    topic = TopicName.parse(name)
    assert not matches(SCOPE, access.topic(name))
    assert not matches(SCOPE, access.namespace(topic.namespace))
    assert not is_of("acme", topic)
    assert tenant_of_namespace(topic.namespace) != "acme"


NAMES = st.from_regex(r"[a-z0-9_.-]{1,12}", fullmatch=True).filter(lambda one: one not in (".", ".."))


@given(NAMES, NAMES)
def test_what_the_scope_covers_is_what_belongs_to_the_tenant(namespace: str, topic: str) -> None:
    name = TopicName(namespace, topic)
    assert matches(SCOPE, access.topic(str(name))) == is_of("acme", name)


@pytest.mark.parametrize(
    ("scope", "tenant", "of_none"),
    [
        ("/acme.*/*", "acme", False),
        ("/acme.default/*", "acme", False),
        ("/acme.default/traces", "acme", False),
        ("/acme.*", "acme", False),
        ("/acme*", None, False),
        ("/*.x/*", None, False),
        ("/*", None, False),
        ("*", None, False),
        ("/", None, True),
        ("/shop/*", None, True),
        ("/Shop.eu/*", None, True),
        ("orders-value", None, True),
    ],
)
def test_the_tenant_of_a_scope(scope: str, tenant: str | None, of_none: bool) -> None:
    assert tenant_of_scope(scope) == tenant
    assert is_of_no_tenant(scope) is of_none


def test_the_resource_of_a_tenant_is_covered_by_its_scope_and_wider_ones() -> None:
    own = resource_of("acme")
    for scope in (SCOPE, "*", "/*", "/acme*/*"):
        assert matches(scope, own)
    for scope in (scope_of("bank"), "/acme.default/*", "/shop/*", "/acme/*"):
        assert not matches(scope, own)


def test_the_role_of_a_tenant_has_the_schemas_of_its_scope_alone() -> None:
    role = BUILT_IN[TENANT]
    grants = [RoleGrant(role.within(SCOPE), SCOPE)]
    for action in (Action.DESCRIBE, Action.CREATE):
        assert decide(grants, action, access.schema("/acme.default/orders"))
        assert not decide(grants, action, access.schema("/bank.default/orders"))
        assert not decide(grants, action, access.schema("orders"))
    for action in Action:
        for kind in (ResourceKind.SERVER, ResourceKind.NAMESPACE, ResourceKind.TOPIC):
            assert not decide(grants, action, Resource(kind, "/" if kind is ResourceKind.SERVER else "/bank.x"))
    for action in (Action.ALTER, Action.DELETE, Action.OPERATE, Action.GRANT):
        assert not decide(grants, action, access.topic("/acme.default/traces"))
