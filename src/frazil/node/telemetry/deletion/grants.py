"""The keys and bindings of a tenant: those that are confined to it."""

from __future__ import annotations

import contextlib

from frazil.core.clock import Clock
from frazil.core.errors import GrantNotFound
from frazil.node.access.directory import AccessDirectory, binding_key
from frazil.node.access.grants import BindingAdmin, KeyAdmin
from frazil.node.access.keys import PRINCIPAL_PREFIX
from frazil.node.access.roles import Binding
from frazil.node.telemetry.deletion.notes import DeletionNotes
from frazil.node.telemetry.scopes import tenant_of_scope


def delete_grants(directory: AccessDirectory, clock: Clock, tenant: str, notes: DeletionNotes) -> None:
    """Revoke the keys that have no rights but in this tenant, and remove the bindings of all others."""
    keys, bindings = KeyAdmin(directory, clock), BindingAdmin(directory)
    revoked = keys_of(directory, tenant, only=True)
    for key_id in revoked:
        notes.key(key_id, directory.state.keys[key_id].owner)
        with contextlib.suppress(GrantNotFound):
            keys.revoke(key_id)
    principals = {PRINCIPAL_PREFIX + key_id for key_id in revoked}  # their bindings went with them
    for one in bindings_of(directory, tenant):
        if one.principal in principals:
            continue
        notes.binding(binding_key(one).rpartition("/")[2], one.as_dict())
        with contextlib.suppress(GrantNotFound):
            bindings.remove(one.principal, one.role, one.scope)


def grants_left(directory: AccessDirectory, tenant: str) -> list[str]:
    keys = [f"key {one}" for one in keys_of(directory, tenant, only=True)]
    return keys + [f"binding {one.principal} {one.role} {one.scope}" for one in bindings_of(directory, tenant)]


def keys_of(directory: AccessDirectory, tenant: str, *, only: bool = False) -> list[str]:
    """Return the ids of the keys with a binding confined to a tenant; `only`: and none elsewhere."""
    state = directory.state
    found = []
    for key_id, record in sorted(state.keys.items(), key=lambda one: one[1].created_us):
        own = [tenant_of_scope(one.scope) == tenant for one in state.bindings.get(record.principal, {}).values()]
        if any(own) and (all(own) or not only):
            found.append(key_id)
    return found


def bindings_of(directory: AccessDirectory, tenant: str) -> list[Binding]:
    every = (one for own in directory.state.bindings.values() for one in own.values())
    return [one for one in every if tenant_of_scope(one.scope) == tenant]
