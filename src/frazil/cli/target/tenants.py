"""Tenants of a verb: through the running server, else directly in the metadata store of the folder.

A deletion without a server opens the folder: it deletes topics with their rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from frazil.cli.target.folder import settings_on_disk
from frazil.cli.target.server import Server, find_server

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.node.telemetry.admin import TenantAdmin


class Tenants(Protocol):
    """Answers are those of the HTTP API."""

    def list(self) -> list[dict[str, Any]]: ...

    def show(self, tenant: str) -> dict[str, Any]: ...

    def create(self, tenant: str, given: Mapping[str, Any], *, with_key: bool) -> dict[str, Any]: ...

    def change(self, tenant: str, given: Mapping[str, Any]) -> dict[str, Any]: ...

    def rotate_key(self, tenant: str, key_id: str | None, overlap_ms: int) -> dict[str, Any]: ...

    def delete(self, tenant: str, *, force: bool) -> dict[str, Any]:
        """Delete for some seconds; the answer says whether it is `done`."""
        ...


@contextlib.contextmanager
def open_tenants(server: str | None, data: Path | None, config: Path | None) -> Iterator[Tenants]:
    found = find_server(server, data, config)
    if found is not None:
        yield ServedTenants(found)
        return
    from frazil.node.telemetry.opening import stored_tenants

    settings = settings_on_disk(data, config)
    with stored_tenants(settings) as admin:
        yield StoredTenants(admin, settings)


class ServedTenants:
    def __init__(self, server: Server) -> None:
        self._server = server

    def list(self) -> list[dict[str, Any]]:
        return self._server.all("/v1/tenants")

    def show(self, tenant: str) -> dict[str, Any]:
        return dict(self._server.get(_path(tenant)))

    def create(self, tenant: str, given: Mapping[str, Any], *, with_key: bool) -> dict[str, Any]:
        return dict(self._server.post("/v1/tenants", {"tenant": tenant, "key": with_key, **given}))

    def change(self, tenant: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._server.put(f"{_path(tenant)}/settings", given))

    def rotate_key(self, tenant: str, key_id: str | None, overlap_ms: int) -> dict[str, Any]:
        body = {"key_id": key_id, "overlap_ms": overlap_ms}
        return dict(self._server.post(f"{_path(tenant)}/rotate-key", body))

    def delete(self, tenant: str, *, force: bool) -> dict[str, Any]:
        return dict(self._server.delete(_path(tenant), force="true" if force else "false"))


class StoredTenants:
    def __init__(self, admin: TenantAdmin, settings: Settings) -> None:
        self._admin = admin
        self._settings = settings

    def list(self) -> list[dict[str, Any]]:
        return [one.as_dict(self._settings.telemetry) for one in self._admin.list()]

    def show(self, tenant: str) -> dict[str, Any]:
        return self._admin.describe(tenant)

    def create(self, tenant: str, given: Mapping[str, Any], *, with_key: bool) -> dict[str, Any]:
        return self._admin.create(tenant, given, with_key=with_key)

    def change(self, tenant: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return self._admin.change(tenant, given)

    def rotate_key(self, tenant: str, key_id: str | None, overlap_ms: int) -> dict[str, Any]:
        return self._admin.rotate_key(tenant, key_id, overlap_ms)

    def delete(self, tenant: str, *, force: bool) -> dict[str, Any]:
        return self._admin.delete(tenant, force=force)


def _path(tenant: str) -> str:
    return f"/v1/tenants/{quote(tenant, safe='')}"
