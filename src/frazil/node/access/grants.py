"""The interfaces to keys, roles and bindings, for doors and the CLI. All calls block on the metadata store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
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
    read_role,
)
from frazil.node.access.keys import PRINCIPAL_PREFIX, KeyRecord, is_key_id, new_key, rotated_key
from frazil.node.access.roles import (
    BUILT_IN,
    EVERYTHING,
    Binding,
    Effect,
    Role,
    check_pattern,
    check_principal,
    check_role_name,
    made_role,
)

KEYS_MAX, ROLES_MAX, BINDINGS_MAX = 10_000, 1_000, 50_000

Changed = Callable[[str, str], None]
"""Called with what was changed, and how, for the audit log."""


def untold(_: str, __: str) -> None:
    """The caller can write the store itself: the command line without a server."""


class KeyAdmin:
    """API keys. The key itself is returned once, by `create` and `rotate`, and stored nowhere."""

    def __init__(self, directory: AccessDirectory, clock: Clock, changed: Changed = untold) -> None:
        self._directory = directory
        self._clock = clock
        self._changed = changed

    def telling(self, changed: Changed) -> KeyAdmin:
        """Return the same, which tells what it has changed."""
        return KeyAdmin(self._directory, self._clock, changed)

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
        self._changed(record.principal, "made")
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
        self._changed(PRINCIPAL_PREFIX + key_id, f"rotated; the old secret stays valid for {overlap_ms} ms")
        return made[-1]

    def revoke(self, key_id: str) -> None:
        """Delete the key, then its bindings. Its streams end within a second."""
        _delete(self._directory, _key_of(key_id), GrantNotFound("key", key_id))
        self._changed(PRINCIPAL_PREFIX + key_id, "revoked")
        self._directory.delete_below(bindings_prefix(PRINCIPAL_PREFIX + key_id))


class RoleAdmin:
    """Built-in roles, and those of users."""

    def __init__(self, directory: AccessDirectory, changed: Changed = untold) -> None:
        self._directory = directory
        self._changed = changed

    def telling(self, changed: Changed) -> RoleAdmin:
        """Return the same, which tells what it has changed."""
        return RoleAdmin(self._directory, changed)

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
        self._changed(f"role {name}", f"set to {value.decode()}")
        return role

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a role that nobody has: a rule that denies must not vanish unnoticed.

        No record says which tokens name a role, and an unknown role denies nothing. So one that denies something is
        deleted only if the caller forces it.
        """
        check_role_name(name)
        if name in BUILT_IN:
            raise InvalidInput(f"name: {name} is built in and cannot be deleted", field="name")

        def deleted(value: bytes | None) -> None:
            """A binding that is added from now on changes the role's record, which is then looked at again."""
            if value is None:
                raise GrantNotFound("role", name)
            if bound := self._directory.bindings_of(name):
                why = f"name: {name} has {bound} binding(s); remove them first"
                raise InvalidInput(why, field="name", bindings=bound)
            denials = sum(rule.effect is Effect.DENY for rule in read_role(name, value).rules)
            if denials and not force:
                raise InvalidInput(
                    f"name: {name} has {denials} rule(s) that deny, and tokens may name it: what they deny would be "
                    "allowed to these callers; add --force, or force=true over HTTP, to delete it anyway",
                    field="name",
                    denials=denials,
                )

        self._directory.change(ROLES + name, deleted)
        self._changed(f"role {name}", "deleted")


class BindingAdmin:
    """Which principal has which role, and where."""

    def __init__(self, directory: AccessDirectory, changed: Changed = untold) -> None:
        self._directory = directory
        self._changed = changed

    def telling(self, changed: Changed) -> BindingAdmin:
        """Return the same, which tells what it has changed."""
        return BindingAdmin(self._directory, changed)

    def list(self, principal: str | None = None) -> list[Binding]:
        known = self._directory.state.bindings
        chosen = known.values() if principal is None else (known.get(principal, {}),)
        return sorted((one for own in chosen for one in own.values()), key=order)

    def add(self, principal: str, role: str, scope: str = EVERYTHING) -> Binding:
        """Bind a role to a principal; a binding that exists is left as it is."""
        binding = Binding(check_principal(principal), role, check_pattern(scope, "scope"))
        check_role_name(role)
        _check_room("bindings", sum(map(len, self._directory.state.bindings.values())), BINDINGS_MAX)
        if principal.startswith(PRINCIPAL_PREFIX):
            self._check_key(principal.removeprefix(PRINCIPAL_PREFIX))
        value = json.dumps(binding.as_dict(), separators=(",", ":")).encode()
        if role in BUILT_IN:
            self._directory.change(binding_key(binding), lambda _: value)
        else:
            self._directory.put_beside(binding_key(binding), value, ROLES + role, GrantNotFound("role", role))
        self._changed(_shown(binding), "added")
        return binding

    def remove(self, principal: str, role: str, scope: str = EVERYTHING) -> Binding:
        """Remove a binding. Also the last one of `admin`: who can read the data folder can always bind it again."""
        binding = Binding(principal, role, scope)
        missing = GrantNotFound("binding", f"{principal} {role} {scope}")
        if len(binding_key(binding).encode()) - len(BINDINGS) > 900:  # no such key can be stored
            raise missing
        _delete(self._directory, binding_key(binding), missing)
        self._changed(_shown(binding), "removed")
        return binding

    def _check_key(self, key_id: str) -> None:
        if self._directory.read(_key_of(key_id)) is None:
            raise GrantNotFound("key", key_id)


def _shown(binding: Binding) -> str:
    return f"binding of {binding.principal} to {binding.role} in {binding.scope}"


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
