"""The interfaces to keys, roles and bindings, for doors and the CLI. All calls block on the metadata store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import GrantNotFound, InvalidInput
from frazil.node.access.directory import (
    BINDINGS,
    KEYS,
    ROLES,
    AccessDirectory,
    binding_key,
    bindings_prefix,
)
from frazil.node.access.keys import PRINCIPAL_PREFIX, KeyRecord, is_key_id, new_key, rotated_key
from frazil.node.access.roles import (
    BUILT_IN,
    EVERYTHING,
    Binding,
    Role,
    check_pattern,
    check_principal,
    check_role_name,
    made_role,
)

KEYS_MAX, ROLES_MAX, BINDINGS_MAX = 10_000, 1_000, 50_000


class KeyAdmin:
    """API keys. The key itself is returned once, by `create` and `rotate`, and stored nowhere."""

    def __init__(self, directory: AccessDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def list(self) -> list[KeyRecord]:
        return sorted(self._directory.state.keys.values(), key=lambda one: one.id)

    def create(self, owner: str, description: str = "", lifetime_ms: int | None = None) -> tuple[KeyRecord, str]:
        """Make a key without rights, and return its record and the key. Without a lifetime it never expires."""
        _check_room("keys", len(self._directory.state.keys), KEYS_MAX)
        record, key = new_key(owner, description, self._clock.now_us(), lifetime_ms)

        def added(value: bytes | None) -> bytes:
            assert value is None, "ids are random"
            return record.encode()

        self._directory.change(KEYS + record.id, added)
        return record, key

    def rotate(self, key_id: str, overlap_ms: int = 0) -> tuple[KeyRecord, str]:
        """Give the key a new secret. The old one stays valid for the overlap; without one it is refused at once."""
        made: list[tuple[KeyRecord, str]] = []

        def rotated(value: bytes | None) -> bytes:
            if value is None:
                raise GrantNotFound("key", key_id)
            made.append(rotated_key(KeyRecord.decode(key_id, value), self._clock.now_us(), overlap_ms))
            return made[-1][0].encode()

        self._directory.change(_key_of(key_id), rotated)
        return made[-1]

    def revoke(self, key_id: str) -> None:
        """Delete the key, then its bindings. Its streams end within a second."""
        _delete(self._directory, _key_of(key_id), GrantNotFound("key", key_id))
        self._directory.delete_below(bindings_prefix(PRINCIPAL_PREFIX + key_id))


class RoleAdmin:
    """Built-in roles, and those of users."""

    def __init__(self, directory: AccessDirectory) -> None:
        self._directory = directory

    def list(self) -> list[Role]:
        return [*BUILT_IN.values(), *sorted(self._directory.state.roles.values(), key=lambda one: one.name)]

    def get(self, name: str) -> Role:
        found = self._directory.state.role(name)
        if found is None:
            raise GrantNotFound("role", name)
        return found

    def put(self, name: str, rules: Iterable[Mapping[str, Any]]) -> Role:
        """Create or replace a role."""
        role = made_role(name, rules)
        value = json.dumps({"rules": [rule.as_dict() for rule in role.rules]}, separators=(",", ":")).encode()
        if name not in self._directory.state.roles:
            _check_room("roles", len(self._directory.state.roles), ROLES_MAX)
        self._directory.change(ROLES + name, lambda _: value)
        return role

    def delete(self, name: str) -> None:
        """Delete a role that nobody has: a rule that denies must not vanish unnoticed."""
        check_role_name(name)
        if name in BUILT_IN:
            raise InvalidInput(f"name: {name} is built in and cannot be deleted", field="name")
        bound = sum(one.role == name for own in self._directory.state.bindings.values() for one in own.values())
        if bound:
            raise InvalidInput(f"name: {name} has {bound} binding(s); remove them first", field="name", bindings=bound)
        _delete(self._directory, ROLES + name, GrantNotFound("role", name))


class BindingAdmin:
    """Which principal has which role, and where."""

    def __init__(self, directory: AccessDirectory) -> None:
        self._directory = directory

    def list(self, principal: str | None = None) -> list[Binding]:
        known = self._directory.state.bindings
        chosen = known.values() if principal is None else (known.get(principal, {}),)
        return sorted((one for own in chosen for one in own.values()), key=order)

    def add(self, principal: str, role: str, scope: str = EVERYTHING) -> Binding:
        """Bind a role to a principal; a binding that exists is left as it is."""
        binding = Binding(check_principal(principal), role, check_pattern(scope, "scope"))
        check_role_name(role)
        state = self._directory.state
        _check_room("bindings", sum(map(len, state.bindings.values())), BINDINGS_MAX)
        if state.role(role) is None and self._directory.read(ROLES + role) is None:
            raise GrantNotFound("role", role)
        if principal.startswith(PRINCIPAL_PREFIX):
            self._check_key(principal.removeprefix(PRINCIPAL_PREFIX))
        value = json.dumps(binding.as_dict(), separators=(",", ":")).encode()
        self._directory.change(binding_key(binding), lambda _: value)
        return binding

    def remove(self, principal: str, role: str, scope: str = EVERYTHING) -> Binding:
        """Remove a binding. Also the last one of `admin`: who can read the data folder can always bind it again."""
        binding = Binding(principal, role, scope)
        missing = GrantNotFound("binding", f"{principal} {role} {scope}")
        if len(binding_key(binding).encode()) - len(BINDINGS) > 900:  # no such key can be stored
            raise missing
        _delete(self._directory, binding_key(binding), missing)
        return binding

    def _check_key(self, key_id: str) -> None:
        if self._directory.read(_key_of(key_id)) is None:
            raise GrantNotFound("key", key_id)


def order(binding: Binding) -> str:
    """Return what bindings are sorted by; no two have the same, since none of the parts has a tab."""
    return f"{binding.principal}\t{binding.role}\t{binding.scope}"


def _key_of(key_id: str) -> str:
    if not is_key_id(key_id):
        raise GrantNotFound("key", key_id)
    return KEYS + key_id


def _delete(directory: AccessDirectory, key: str, missing: GrantNotFound) -> None:
    def deleted(value: bytes | None) -> None:
        if value is None:
            raise missing

    directory.change(key, deleted)


def _check_room(what: str, count: int, count_max: int) -> None:
    if count >= count_max:
        raise InvalidInput(f"{what}: there are {count}, and at most {count_max} are kept; delete some", field=what)
