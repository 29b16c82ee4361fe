"""The interface to tenants, for doors and the CLI. All calls block on the metadata store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.core.clock import Clock
from frazil.core.errors import GrantNotFound, InvalidInput, InvalidName, SecurityOff, TenantNotFound
from frazil.core.settings.telemetry import TelemetrySettings
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.grants import BindingAdmin, Changed, KeyAdmin, untold
from frazil.node.access.keys import PRINCIPAL_PREFIX
from frazil.node.access.roles import TENANT
from frazil.node.telemetry.deletion.deletion import TenantDeletion
from frazil.node.telemetry.deletion.grants import keys_of
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.scopes import is_own, scope_of
from frazil.node.telemetry.tenants import Tenant
from frazil.telemetry.signals import check_name

DELETE_SECONDS_MAX = 20.0


@dataclass(frozen=True, slots=True)
class Grants:
    """What keys of tenants are made with. None of it exists while security is off."""

    directory: AccessDirectory
    keys: KeyAdmin
    bindings: BindingAdmin

    def telling(self, changed: Changed) -> Grants:
        """Return the same, which tells what it has changed."""
        return Grants(self.directory, self.keys.telling(changed), self.bindings.telling(changed))


class TenantAdmin:
    """Answers are those of the HTTP API."""

    def __init__(
        self,
        directory: TenantDirectory,
        settings: TelemetrySettings,
        clock: Clock,
        grants: Grants | None,
        deletion: Callable[[], TenantDeletion],
        changed: Changed = untold,
    ) -> None:
        """`deletion` is called when a tenant is deleted: it needs the topics, which other calls do not."""
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._grants = grants
        self._deletion = deletion
        self._changed = changed

    def telling(self, changed: Changed) -> TenantAdmin:
        """Return the same, which tells what it has changed."""
        grants = None if self._grants is None else self._grants.telling(changed)
        return TenantAdmin(self._directory, self._settings, self._clock, grants, self._deletion, changed)

    def list(self) -> list[Tenant]:
        return self._directory.all()

    def describe(self, name: str) -> dict[str, Any]:
        """Return a tenant with the ids of its keys; null while security is off."""
        check_name(name, "tenant")
        return self._described(self._directory.read(name))

    def create(self, name: str, given: Mapping[str, Any], *, with_key: bool = True) -> dict[str, Any]:
        """Create a tenant, with some of its settings. With security on it gets a key, which is in this answer only."""
        check_name(name, "tenant")
        if is_own(name):
            raise InvalidName(f"the tenant {name}: names that begin with _ are Frazil's own", name=name, field="tenant")
        tenant = Tenant(name, self._clock.now_us()).with_settings(given)
        self._directory.create(tenant)
        self._changed(_shown(name), f"made with {_settings(given)}")
        key = None if self._grants is None or not with_key else self._new_key(self._grants, tenant)
        return {**self._described(tenant), "key": key}

    def change(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Change some settings of a tenant; None resets one."""
        check_name(name, "tenant")

        def changed(tenant: Tenant) -> Tenant:
            if tenant.deleting_us is not None:
                raise TenantNotFound(name)
            return tenant.with_settings(given)

        tenant = self._directory.change(name, changed)
        self._changed(_shown(name), f"set to {_settings(given)}")
        return self._described(tenant)

    def rotate_key(self, name: str, key_id: str | None = None, overlap_ms: int = 0) -> dict[str, Any]:
        """Give a key of a tenant a new secret. A tenant without a key gets one."""
        check_name(name, "tenant")
        if self._grants is None:
            raise SecurityOff
        tenant = self._directory.read(name)
        if tenant.deleting_us is not None:
            raise TenantNotFound(name)
        keys = keys_of(self._grants.directory, name)
        if key_id is not None and key_id not in keys:
            raise GrantNotFound("key", key_id)
        if key_id is None and len(keys) > 1:
            raise InvalidInput(f"key_id: {name} has {len(keys)} keys; name one of {', '.join(keys)}", field="key_id")
        if not keys:
            return {"tenant": name, **self._new_key(self._grants, tenant)}
        record, key = self._grants.keys.rotate(key_id or keys[0], overlap_ms)
        return {"tenant": name, **record.as_dict(), "key": key}

    def delete(self, name: str, *, force: bool = False, seconds_max: float = DELETE_SECONDS_MAX) -> dict[str, Any]:
        """See `TenantDeletion.delete`."""
        check_name(name, "tenant")
        report = self._deletion().delete(name, force=force, seconds_max=seconds_max)
        if report["done"]:  # before, the report of a later call has them too
            for key in report["keys"]:
                self._changed(PRINCIPAL_PREFIX + key["id"], "revoked")
        counts = ", ".join(f"{len(report[what])} {what}" for what in ("topics", "tables", "keys", "bindings"))
        self._changed(_shown(name), f"deleted with {counts}{'' if report['done'] else '; more is left'}")
        return report

    def _new_key(self, grants: Grants, tenant: Tenant) -> dict[str, Any]:
        """Return a new key. A deletion that began meanwhile may have looked for keys before this one was there: then it
        is revoked again, or it would have rights in the next tenant of this name."""
        record, key = grants.keys.create(f"tenant {tenant.name}", "")
        grants.bindings.add(record.principal, TENANT, scope_of(tenant.name))
        if not self._directory.is_there(tenant):
            with contextlib.suppress(GrantNotFound):
                grants.keys.revoke(record.id)
            raise TenantNotFound(tenant.name)
        return {**record.as_dict(), "key": key}

    def _described(self, tenant: Tenant) -> dict[str, Any]:
        keys = None if self._grants is None else keys_of(self._grants.directory, tenant.name)
        return {**tenant.as_dict(self._settings), "keys": keys}


def _shown(tenant: str) -> str:
    return f"tenant {tenant}"


def _settings(given: Mapping[str, Any]) -> str:
    return json.dumps(given, separators=(",", ":"), default=str)
