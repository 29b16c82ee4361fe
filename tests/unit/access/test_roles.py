"""Roles and what they decide."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import frazil
from frazil.core import access
from frazil.core.access import SERVER, Action, Resource, ResourceKind, covers
from frazil.node.access.roles import (
    BUILT_IN,
    RULES_MAX,
    Effect,
    Role,
    RoleGrant,
    Rule,
    check_principal,
    decide,
    made_role,
)

ACTIONS = st.sampled_from([Action.DESCRIBE, Action.READ])
"""Two are enough: with all, most rules would cover nothing that is asked for."""
PATTERNS = st.just("*") | st.sampled_from(["*", "/", "/*", "/a/*", "/a", "/a/x", "/*/x", "/b/*", "/a/x/*", "s*", "s1"])
RESOURCES = st.one_of(
    st.just(SERVER),
    st.sampled_from(["a", "b"]).map(access.namespace),
    st.sampled_from(["/a/x", "/a/y", "/b/x"]).map(access.topic),
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"])).map(lambda one: access.table(*one)),
    st.tuples(st.sampled_from(["/a/x", "/b/x"]), st.sampled_from(["s1", "s2"])).map(
        lambda one: access.subscription(*one)
    ),
    st.sampled_from(["s1", "s2", "/a/x"]).map(access.schema),
)
RULES = st.builds(
    Rule,
    st.sampled_from(Effect),
    st.frozensets(ACTIONS, min_size=1),
    st.none() | st.sampled_from(ResourceKind),
    PATTERNS,
)
GRANTS = st.lists(
    st.builds(RoleGrant, st.builds(Role, st.just("r"), st.lists(RULES, max_size=4).map(tuple)), PATTERNS), max_size=4
)


def covered(pattern: str, resource: Resource) -> bool:
    """A naive reading of a pattern: a regular expression, and a namespace is also its name with a slash."""
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    names = [resource.name, *([f"{resource.name}/"] if resource.kind == "namespace" else [])]
    return any(expression.fullmatch(name) for name in names)


def oracle(grants: list[RoleGrant], action: Action, resource: Resource) -> bool:
    effects = {
        rule.effect
        for role, scope in grants
        for rule in role.rules
        if action in rule.actions
        and rule.kind in (None, resource.kind)
        and covered(rule.pattern, resource)
        and (covered(scope, resource) or (resource.kind == "schema" and action == "describe"))
        and (rule.effect is Effect.DENY or resource is not SERVER or {scope, rule.pattern} <= {"*", "/"})
    }
    return effects == {Effect.ALLOW}


@settings(max_examples=500)
@given(GRANTS, ACTIONS, RESOURCES)
def test_a_decision_is_that_of_a_naive_oracle(grants: list[RoleGrant], action: Action, resource: Resource) -> None:
    assert decide(grants, action, resource) is oracle(grants, action, resource)


@given(st.text("ab/*", max_size=8), st.text("ab/", max_size=10))
def test_a_pattern_covers_what_a_shell_pattern_does(pattern: str, name: str) -> None:
    assert covers(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_of_many_stars_takes_no_long_time() -> None:
    began = time.perf_counter()
    assert not covers("*a" * 100 + "b", "a" * 100_000)
    assert time.perf_counter() - began < 1


def allowed(role: str, action: Action, resource: Resource, scope: str = "*") -> bool:
    return decide([RoleGrant(BUILT_IN[role], scope)], action, resource)


TOPIC, SUBSCRIPTION = access.topic("/shop/orders"), access.subscription("/shop/orders", "billing")
TABLE, SCHEMA, NAMESPACE = access.table("shop", "orders"), access.schema("order"), access.namespace("shop")
EVERY = (TOPIC, SUBSCRIPTION, TABLE, SCHEMA, NAMESPACE, SERVER)
KEPT = (TOPIC, SUBSCRIPTION, TABLE, SCHEMA, NAMESPACE)
GRANTED = {
    "admin": {(action, one) for action in Action for one in EVERY},
    "operator": {(Action.DESCRIBE, one) for one in EVERY}
    | {(Action.OPERATE, SERVER)}
    | {(action, one) for action in (Action.CREATE, Action.ALTER, Action.DELETE) for one in KEPT},
    "producer": {(Action.DESCRIBE, TOPIC), (Action.PRODUCE, TOPIC), (Action.DESCRIBE, SCHEMA)},
    "consumer": {
        *((action, TOPIC) for action in (Action.DESCRIBE, Action.CONSUME, Action.READ)),
        *(
            (action, SUBSCRIPTION)
            for action in (Action.DESCRIBE, Action.CONSUME, Action.CREATE, Action.ALTER, Action.DELETE)
        ),
        (Action.DESCRIBE, SCHEMA),
    },
    "reader": {
        *((action, one) for action in (Action.DESCRIBE, Action.READ) for one in (TOPIC, TABLE)),
        (Action.DESCRIBE, SCHEMA),
    },
    "tenant": {
        *((action, one) for action in (Action.DESCRIBE, Action.READ) for one in (TOPIC, TABLE)),
        *((action, TOPIC) for action in (Action.PRODUCE, Action.CONSUME, Action.CREATE)),
        *(
            (action, SUBSCRIPTION)
            for action in (Action.DESCRIBE, Action.CONSUME, Action.CREATE, Action.ALTER, Action.DELETE)
        ),
        *((action, one) for action in (Action.DESCRIBE, Action.CREATE) for one in (SCHEMA, NAMESPACE)),
    },
}


@pytest.mark.parametrize("role", BUILT_IN)
def test_a_built_in_role_grants_exactly_what_is_documented(role: str) -> None:
    assert {(action, one) for action in Action for one in EVERY if allowed(role, action, one)} == GRANTED[role]


def test_an_administrator_of_a_namespace_has_no_rights_outside() -> None:
    assert allowed("admin", Action.DELETE, TOPIC, "/shop/*")
    assert allowed("admin", Action.CREATE, NAMESPACE, "/shop/*")
    assert not allowed("admin", Action.DELETE, access.topic("/shops/orders"), "/shop/*")
    assert not allowed("admin", Action.GRANT, SERVER, "/shop/*")
    assert not allowed("admin", Action.DELETE, SCHEMA, "/shop/*")
    assert allowed("producer", Action.DESCRIBE, SCHEMA, "/shop/*")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_rule_that_denies_wins_over_those_before_and_after_it(order: tuple[int, int]) -> None:
    every = frozenset(Action)
    rules = (Rule(Effect.ALLOW, every, None), Rule(Effect.DENY, every, ResourceKind.TOPIC, "/shop/*"))
    role = Role("mine", tuple(rules[number] for number in order))
    alone = [Role("a", rules[:1]), Role("b", rules[1:])]
    for grants in ([RoleGrant(role, "*")], [RoleGrant(alone[number], "*") for number in order]):
        assert not decide(grants, Action.READ, TOPIC)
        assert decide(grants, Action.READ, TABLE)
    assert not decide([], Action.READ, TABLE)


@pytest.mark.parametrize(
    ("scope", "expected"), [("*", True), ("/", True), ("/*", False), ("**", False), ("/shop/*", False)]
)
def test_rights_on_the_server_are_named(scope: str, expected: bool) -> None:
    """An administrator of all topics, `/*`, is none of the server: it would grant itself the rest."""
    admin = RoleGrant(BUILT_IN["admin"], scope)
    assert decide([admin], Action.GRANT, SERVER) is expected
    assert decide([admin], Action.READ, TOPIC) is (scope != "/")
    rule = Rule(Effect.ALLOW, frozenset(Action), None, scope)
    assert decide([RoleGrant(Role("r", (rule,)), "*")], Action.GRANT, SERVER) is expected
    denial = RoleGrant(Role("r", (Rule(Effect.DENY, frozenset(Action), None, scope),)), "*")
    everything = RoleGrant(BUILT_IN["admin"], "*")
    assert decide([everything, denial], Action.GRANT, SERVER) is (scope == "/shop/*"), "a denial covers it too"


def test_a_partition_has_the_rights_of_its_topic() -> None:
    assert allowed("producer", Action.PRODUCE, access.topic("/shop/orders-part-3"), "/shop/orders")


def test_a_role_is_the_same_after_it_was_written() -> None:
    rules = [{"effect": "deny", "actions": ["read", "grant"], "kind": "*", "pattern": "/a/*"}]
    made = made_role("mine", rules)
    assert made.as_dict()["rules"] == rules
    assert made_role("mine", made.as_dict()["rules"]) == made
    for role in BUILT_IN.values():
        assert made_role("copy", role.as_dict()["rules"]).rules == role.rules


RULE = {"effect": "allow", "actions": ["read"], "kind": "topic", "pattern": "*"}


@pytest.mark.parametrize(
    ("name", "rules", "field"),
    [
        ("Admin", [RULE], "name"),
        ("a" * 65, [RULE], "name"),
        ("a\n", [RULE], "name"),
        ("admin", [RULE], "name"),
        ("r", [], "rules"),
        ("r", [RULE] * (RULES_MAX + 1), "rules"),
        ("r", [RULE | {"effect": "maybe"}], "rules.0.effect"),
        ("r", [RULE, RULE | {"actions": ["write"]}], "rules.1.actions"),
        ("r", [RULE | {"actions": []}], "rules.0.actions"),
        ("r", [RULE | {"actions": "read"}], "rules.0.actions"),
        ("r", [RULE | {"kind": "planet"}], "rules.0.kind"),
        ("r", [{"actions": ["read"]}], "rules.0.kind"),
        ("r", [RULE | {"pattern": ""}], "rules.0.pattern"),
        ("r", [RULE | {"pattern": "a" * 257}], "rules.0.pattern"),
        ("r", [RULE | {"pattern": 7}], "rules.0.pattern"),
        ("r", [RULE | {"more": 1}], "rules.0"),
        ("r", ["read"], "rules.0"),
    ],
)
def test_a_wrong_role_is_refused_by_the_name_of_the_field(
    name: str, rules: list[dict[str, object]], field: str
) -> None:
    with pytest.raises(frazil.InvalidInput) as refused:
        made_role(name, rules)
    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field}:")


@pytest.mark.parametrize("name", ["", "alice", "key:", "local", "anonymous", "user:a", "key:a\nb", "jwt:" + "a" * 253])
def test_a_wrong_principal_is_refused(name: str) -> None:
    with pytest.raises(frazil.InvalidInput, match="principal"):
        check_principal(name)
