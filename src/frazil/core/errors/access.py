"""Errors of authentication, authorization and quotas. `frazil.core.errors` draws the whole tree."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError
from frazil.core.errors.disk import TryLater


class Unauthenticated(FrazilError):
    """The caller has no valid credentials. The message tells neither whether a key exists nor how much was right."""

    code = "unauthenticated"

    def __init__(self, reason: str = "credentials are missing or invalid") -> None:
        super().__init__(f"{reason}; send an API key or a token as `authorization: Bearer …`")


class PermissionDenied(FrazilError):
    """The caller may not do this. It is the same error whether or not the resource exists."""

    code = "permission_denied"

    def __init__(self, principal: str, action: str, kind: str, name: str) -> None:
        shown = ascii(name) if len(name) <= 200 else ascii(name[:197] + "...")
        super().__init__(
            f"{principal} may not {action} the {kind} {shown}; an administrator can bind a role to it",
            principal=principal,
            action=action,
            resource=f"{kind}:{name[:200]}",
        )


class QuotaExceeded(TryLater):
    """The caller has used up a quota; other callers are not affected."""

    code = "quota_exceeded"

    def __init__(self, principal: str, quota: str, limit: int, retry_after_ms: int) -> None:
        super().__init__(
            f"{principal} has reached its quota {quota} = {limit}; try again in {retry_after_ms} ms",
            principal=principal,
            quota=quota,
            limit=limit,
            retry_after_ms=retry_after_ms,
        )


class SecurityOff(FrazilError):
    """Keys, roles and bindings have no effect while security is off."""

    code = "security_off"

    def __init__(self) -> None:
        super().__init__(
            "security is off, and this needs it; set `security.enabled: true` and start `frazil serve` again",
            setting="security.enabled",
        )


class GrantNotFound(FrazilError):
    """There is no such key, role or binding."""

    code = "grant_not_found"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!a:.300}; see `frazil {kind}s list`", kind=kind, name=name[:300])
