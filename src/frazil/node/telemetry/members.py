"""Which tenant a principal belongs to: the only one that its bindings are confined to."""

from __future__ import annotations

from frazil.core.principal import Principal
from frazil.node.access.directory import AccessDirectory
from frazil.node.telemetry.scopes import is_of_no_tenant, tenant_of_scope

KEPT_MAX = 65_536


class Members:
    """Answers are kept until the directory changes. Any thread may call it."""

    def __init__(self, directory: AccessDirectory) -> None:
        self._directory = directory
        self._known: tuple[int, dict[Principal, str | None]] = (-1, {})

    def tenant(self, who: Principal) -> str | None:
        """Return the tenant of a principal; None if it may act for several, or for none."""
        generation = self._directory.generation  # before the grants: they are of this generation, or of a later one
        known_generation, known = self._known
        if known_generation != generation or len(known) >= KEPT_MAX:
            known = {}
            self._known = (generation, known)
        if who not in known:
            known[who] = self._found(who)
        return known[who]

    def _found(self, who: Principal) -> str | None:
        scopes = [grant.scope for grant in self._directory.grants(who) if not is_of_no_tenant(grant.scope)]
        tenants = {tenant_of_scope(scope) for scope in scopes}
        return tenants.pop() if len(tenants) == 1 else None
