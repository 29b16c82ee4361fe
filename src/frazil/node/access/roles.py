"""Roles, rules and bindings, and the decision that they lead to. Pure: nothing here reads or stores.

A binding gives a role to a principal within a scope. A right is granted if some rule of the principal's roles allows it
and none denies it; without a matching rule it is denied.

The scope narrows every right to the resources that it covers, with one exception: schemas have no namespace, so
`describe` of a schema is not narrowed, but for the role `tenant`, whose principals learn nothing of other tenants.
Rights on the server therefore need a scope that covers `/`, such as `*`: an administrator of `/shop/*` grants nothing
and operates nothing outside of it. What allows on the server must say so: as `*`, or as `/` for the server alone. `/*`
means what has a name below, as all topics.

What belongs to tenants whose names begin with `_` is seen by administrators alone, and by principals of roles or scopes
that name it, as `/_frazil.*/*`. Nobody has a right to write there.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from frazil.core.access import SERVER, WRITES, Action, Resource, ResourceKind, is_reserved, matches
from frazil.core.errors import InvalidInput

EVERYTHING = "*"
TENANT = "tenant"
"""The built-in role of a tenant's keys."""
_SERVER_TOO = (EVERYTHING, SERVER.name)
"""Patterns and scopes that may allow something on the server. Others cover it only in a rule that denies."""
RULES_MAX = 100
PATTERN_LENGTH_MAX = 256
PRINCIPAL_BYTES_MAX = 256
PRINCIPAL_KINDS = ("key", "jwt", "cert")
Chosen = TypeVar("Chosen", bound=enum.StrEnum)
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)


class Effect(enum.StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Rule:
    effect: Effect
    actions: frozenset[Action]
    kind: ResourceKind | None
    """None: resources of every kind."""
    pattern: str = EVERYTHING

    def covers(self, action: Action, resource: Resource) -> bool:
        return (
            action in self.actions
            and (self.kind is None or self.kind is resource.kind)
            and matches(self.pattern, resource)
        )

    def as_dict(self) -> dict[str, Any]:
        every = len(self.actions) == len(Action)
        return {
            "effect": self.effect.value,
            "actions": [EVERYTHING] if every else [one.value for one in Action if one in self.actions],
            "kind": EVERYTHING if self.kind is None else self.kind.value,
            "pattern": self.pattern,
        }


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    rules: tuple[Rule, ...]

    @property
    def is_built_in(self) -> bool:
        return self.name in BUILT_IN

    def within(self, scope: str) -> Role:
        """Return the role as a binding grants it: that of tenants has the schemas of the scope alone."""
        if self.name != TENANT or not self.is_built_in:
            return self
        rules = (replace(one, pattern=scope) if one.kind is ResourceKind.SCHEMA else one for one in self.rules)
        return Role(self.name, tuple(rules))

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "built_in": self.is_built_in, "rules": [rule.as_dict() for rule in self.rules]}


@dataclass(frozen=True, slots=True)
class Binding:
    principal: str
    role: str
    scope: str = EVERYTHING

    def as_dict(self) -> dict[str, Any]:
        return {"principal": self.principal, "role": self.role, "scope": self.scope}


class RoleGrant(NamedTuple):
    """A role that a principal has, and the scope in which it has it."""

    role: Role
    scope: str


def decide(grants: Iterable[RoleGrant], action: Action, resource: Resource) -> bool:
    """Whether these roles grant a right: a denying rule wins, and without an allowing one it is denied."""
    allowed, reserved = False, is_reserved(resource)
    if reserved and action in WRITES:
        return False
    for role, scope in grants:
        if not _in_scope(scope, action, resource):
            continue
        for rule in role.rules:
            if rule.covers(action, resource):
                if rule.effect is Effect.DENY:
                    return False
                names_it = resource.kind is not ResourceKind.SERVER or _names_server(scope, rule.pattern)
                allowed = allowed or (names_it and (not reserved or _sees_reserved(role, scope, rule)))
    return allowed


def _sees_reserved(role: Role, scope: str, rule: Rule) -> bool:
    """Whether a rule may concern tenants whose names begin with `_`: of an administrator, or if it names them."""
    if scope.startswith("/_") or rule.pattern.startswith("/_"):
        return True
    grants = (one for one in role.rules if one.effect is Effect.ALLOW and one.covers(Action.GRANT, SERVER))
    return scope == EVERYTHING and any(grants)


def _names_server(*patterns: str) -> bool:
    return all(pattern in _SERVER_TOO for pattern in patterns)


def _in_scope(scope: str, action: Action, resource: Resource) -> bool:
    if scope == EVERYTHING:
        return True
    return (resource.kind is ResourceKind.SCHEMA and action is Action.DESCRIBE) or matches(scope, resource)


def _allow(kind: ResourceKind | None, *actions: Action) -> Rule:
    return Rule(Effect.ALLOW, frozenset(actions), kind)


_KEPT = (
    ResourceKind.TOPIC,
    ResourceKind.SUBSCRIPTION,
    ResourceKind.TABLE,
    ResourceKind.NAMESPACE,
    ResourceKind.SCHEMA,
)
_SCHEMAS = _allow(ResourceKind.SCHEMA, Action.DESCRIBE)
_ALL_OF_SUBSCRIPTIONS = _allow(
    ResourceKind.SUBSCRIPTION, Action.DESCRIBE, Action.CONSUME, Action.CREATE, Action.ALTER, Action.DELETE
)

BUILT_IN: Mapping[str, Role] = {
    role.name: role
    for role in (
        Role("admin", (_allow(None, *Action),)),
        Role(
            "operator",
            (
                _allow(None, Action.DESCRIBE),
                _allow(ResourceKind.SERVER, Action.OPERATE),
                *(_allow(kind, Action.CREATE, Action.ALTER, Action.DELETE) for kind in _KEPT),
            ),
        ),
        Role("producer", (_allow(ResourceKind.TOPIC, Action.DESCRIBE, Action.PRODUCE), _SCHEMAS)),
        Role(
            "consumer",
            (
                _allow(ResourceKind.TOPIC, Action.DESCRIBE, Action.CONSUME, Action.READ),
                _ALL_OF_SUBSCRIPTIONS,
                _SCHEMAS,
            ),
        ),
        Role(
            "reader",
            (
                _allow(ResourceKind.TOPIC, Action.DESCRIBE, Action.READ),
                _allow(ResourceKind.TABLE, Action.DESCRIBE, Action.READ),
                _SCHEMAS,
            ),
        ),
        Role(
            TENANT,
            (
                _allow(ResourceKind.TOPIC, Action.DESCRIBE, Action.READ, Action.PRODUCE, Action.CONSUME, Action.CREATE),
                _ALL_OF_SUBSCRIPTIONS,
                _allow(ResourceKind.TABLE, Action.DESCRIBE, Action.READ),
                _allow(ResourceKind.NAMESPACE, Action.DESCRIBE, Action.CREATE),
                _allow(ResourceKind.SCHEMA, Action.DESCRIBE, Action.CREATE),
            ),
        ),
    )
}

UNREADABLE = Role("~unreadable", (Rule(Effect.DENY, frozenset(Action), None),))
"""Stands for a record that cannot be read. It may deny something, so its principals have no rights meanwhile."""


# --- validation of what users give


def check_role_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"name: {name!a:.80} is no name of a role; use 1 to 64 of a-z 0-9 _ . - with a letter first", field="name"
        )


def made_role(name: str, rules: Iterable[Mapping[str, Any]]) -> Role:
    """Check and build a role of a user."""
    check_role_name(name)
    if name in BUILT_IN:
        raise InvalidInput(f"name: {name} is built in and cannot be changed; use another name", field="name")
    found = tuple(_made_rule(number, rule) for number, rule in enumerate(rules))
    if not 1 <= len(found) <= RULES_MAX:
        raise InvalidInput(f"rules: {len(found)} were given; a role has 1 to {RULES_MAX}", field="rules")
    return Role(name, found)


def _made_rule(number: int, given: Mapping[str, Any]) -> Rule:
    where = f"rules.{number}"
    if not isinstance(given, Mapping) or set(given) - {"effect", "actions", "kind", "pattern"}:
        raise InvalidInput(f"{where}: must have effect, actions, kind and pattern, and nothing else", field=where)
    actions = given.get("actions")
    if not isinstance(actions, list | tuple) or not actions or len(actions) > len(Action):
        raise InvalidInput(f"{where}.actions: must be a list of 1 to {len(Action)} actions", field=f"{where}.actions")
    return Rule(
        _one_of(Effect, given.get("effect", Effect.ALLOW), f"{where}.effect"),
        frozenset(Action)
        if EVERYTHING in actions
        else frozenset(_one_of(Action, one, f"{where}.actions") for one in actions),
        None if given.get("kind") == EVERYTHING else _one_of(ResourceKind, given.get("kind"), f"{where}.kind"),
        check_pattern(given.get("pattern", EVERYTHING), f"{where}.pattern"),
    )


def _one_of(kind: type[Chosen], value: Any, field: str) -> Chosen:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InvalidInput(f"{field}: {value!a:.80} is not one of {known}", field=field) from None


def check_pattern(value: Any, field: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= PATTERN_LENGTH_MAX or not value.isprintable():
        raise InvalidInput(
            f"{field}: must have 1 to {PATTERN_LENGTH_MAX} printable characters, as * or /shop/*", field=field
        )
    return value


def check_principal(name: str) -> str:
    kind, _, rest = name.partition(":")
    if kind not in PRINCIPAL_KINDS or not rest or not name.isprintable() or len(name.encode()) > PRINCIPAL_BYTES_MAX:
        raise InvalidInput(
            f"principal: {name!a:.80} is none; use key:ID, jwt:SUBJECT or cert:NAME, "
            f"with at most {PRINCIPAL_BYTES_MAX} bytes",
            field="principal",
        )
    return name
