"""Keys, roles and bindings of a verb: through the running server, else directly in the metadata store of the folder.

Without a server, who can open the store may change everything: the first administrator's key is made that way. A server
that uses the same store sees the change within a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from frazil.cli.target.folder import settings_on_disk
from frazil.cli.target.server import Server, find_server

if TYPE_CHECKING:
    from frazil.core.clock import Clock
    from frazil.node.access.directory import AccessDirectory


class AccessAdmin(Protocol):
    """Answers are those of the HTTP API."""

    def keys(self) -> list[dict[str, Any]]: ...

    def create_key(self, owner: str, description: str, lifetime_ms: int | None) -> dict[str, Any]: ...

    def rotate_key(self, key_id: str, overlap_ms: int) -> dict[str, Any]: ...

    def revoke_key(self, key_id: str) -> dict[str, Any]: ...

    def roles(self) -> list[dict[str, Any]]: ...

    def role(self, name: str) -> dict[str, Any]: ...

    def set_role(self, name: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]: ...

    def delete_role(self, name: str, *, force: bool) -> dict[str, Any]: ...

    def bindings(self, principal: str | None) -> list[dict[str, Any]]: ...

    def bind(self, principal: str, role: str, scope: str) -> dict[str, Any]: ...

    def unbind(self, principal: str, role: str, scope: str) -> dict[str, Any]: ...


@contextlib.contextmanager
def access_admin(server: str | None, data: Path | None, config: Path | None) -> Iterator[AccessAdmin]:
    found = find_server(server, data, config)
    if found is not None:
        yield ServedAccess(found)
        return
    from frazil.core.clock import SystemClock
    from frazil.meta.opening import open_meta
    from frazil.node.access.directory import AccessDirectory

    with contextlib.closing(open_meta(settings_on_disk(data, config))) as store:
        yield StoredAccess(AccessDirectory(store, follows=False), SystemClock())


class ServedAccess:
    def __init__(self, server: Server) -> None:
        self._server = server

    def keys(self) -> list[dict[str, Any]]:
        return self._server.all("/v1/keys")

    def create_key(self, owner: str, description: str, lifetime_ms: int | None) -> dict[str, Any]:
        body = {"owner": owner, "description": description, "lifetime_ms": lifetime_ms}
        return dict(self._server.post("/v1/keys", body))

    def rotate_key(self, key_id: str, overlap_ms: int) -> dict[str, Any]:
        return dict(self._server.post(f"/v1/keys/{quote(key_id, safe='')}/rotate", {"overlap_ms": overlap_ms}))

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        return dict(self._server.delete(f"/v1/keys/{quote(key_id, safe='')}"))

    def roles(self) -> list[dict[str, Any]]:
        return self._server.all("/v1/roles")

    def role(self, name: str) -> dict[str, Any]:
        return dict(self._server.get(f"/v1/roles/{quote(name, safe='')}"))

    def set_role(self, name: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return dict(self._server.put(f"/v1/roles/{quote(name, safe='')}", {"rules": list(rules)}))

    def delete_role(self, name: str, *, force: bool) -> dict[str, Any]:
        return dict(self._server.delete(f"/v1/roles/{quote(name, safe='')}", force="true" if force else "false"))

    def bindings(self, principal: str | None) -> list[dict[str, Any]]:
        found = self._server.all("/v1/bindings")
        return [one for one in found if principal is None or one["principal"] == principal]

    def bind(self, principal: str, role: str, scope: str) -> dict[str, Any]:
        return dict(self._server.post("/v1/bindings", {"principal": principal, "role": role, "scope": scope}))

    def unbind(self, principal: str, role: str, scope: str) -> dict[str, Any]:
        return dict(self._server.delete("/v1/bindings", principal=principal, role=role, scope=scope))


class StoredAccess:
    def __init__(self, directory: AccessDirectory, clock: Clock) -> None:
        from frazil.node.access.grants import BindingAdmin, KeyAdmin, RoleAdmin

        self._keys = KeyAdmin(directory, clock)
        self._roles = RoleAdmin(directory)
        self._bindings = BindingAdmin(directory)

    def keys(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._keys.list()]

    def create_key(self, owner: str, description: str, lifetime_ms: int | None) -> dict[str, Any]:
        record, key = self._keys.create(owner, description, lifetime_ms)
        return {**record.as_dict(), "key": key}

    def rotate_key(self, key_id: str, overlap_ms: int) -> dict[str, Any]:
        record, key = self._keys.rotate(key_id, overlap_ms)
        return {**record.as_dict(), "key": key}

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        self._keys.revoke(key_id)
        return {"id": key_id, "revoked": True}

    def roles(self) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._roles.list()]

    def role(self, name: str) -> dict[str, Any]:
        return self._roles.get(name).as_dict()

    def set_role(self, name: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self._roles.put(name, rules).as_dict()

    def delete_role(self, name: str, *, force: bool) -> dict[str, Any]:
        self._roles.delete(name, force=force)
        return {"name": name, "deleted": True}

    def bindings(self, principal: str | None) -> list[dict[str, Any]]:
        return [one.as_dict() for one in self._bindings.list(principal)]

    def bind(self, principal: str, role: str, scope: str) -> dict[str, Any]:
        return self._bindings.add(principal, role, scope).as_dict()

    def unbind(self, principal: str, role: str, scope: str) -> dict[str, Any]:
        return {**self._bindings.remove(principal, role, scope).as_dict(), "deleted": True}
