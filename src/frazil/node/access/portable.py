"""The grants of a caller as JSON values, for a process that decides without the gate: a query's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from frazil.node.access.roles import RoleGrant, check_pattern, made_role

NAME = "caller"
"""Of the roles there: their names do not matter to a decision."""


def grants_to_json(grants: Iterable[RoleGrant]) -> list[dict[str, Any]]:
    return [{"scope": scope, "rules": [rule.as_dict() for rule in role.rules]} for role, scope in grants]


def grants_from_json(values: Iterable[Mapping[str, Any]]) -> tuple[RoleGrant, ...]:
    """Raises `InvalidInput` or `KeyError` for anything else: a rule that is not understood must not be left out."""
    return tuple(RoleGrant(made_role(NAME, one["rules"]), check_pattern(one["scope"], "scope")) for one in values)
