"""The gate: identifies callers and checks their rights. Every call of every door passes it before anything else.

    identify(credentials)          the caller, or `Unauthenticated`
    check(who, action, resource)   returns, or raises `PermissionDenied`, or `Unauthenticated` if they expired
    allows(who, action, resource)  the same as a bool, for listings that show only what the caller may know of

Without security (`OpenGate`) every caller is anonymous and may do everything, but write to tenants whose names begin
with `_`. This process itself (`LOCAL`) always may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from frazil.core.access import WRITES, Action, Resource, Right, is_reserved
from frazil.core.errors import PermissionDenied, Unauthenticated
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.settings import Settings

AUTHORIZATION = "authorization"
"""The header, or the metadata of a gRPC call, that carries an API key or a token."""
HEADER_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a call presents. `certificate` is the verified client certificate's name, if it has one."""

    authorization: str | None = None
    certificate: str | None = None
    peer: str = ""
    """The caller's address, for the audit log."""
    certificate_expires_us: int | None = None


def only_header(given: Sequence[str | bytes]) -> str | None:
    """Return the only value of a call's `authorization`, or None without one; raises `Unauthenticated`.

    It is refused by its size before anything looks into it.
    """
    if sum(map(len, given)) > HEADER_BYTES_MAX:
        raise Unauthenticated(f"the header {AUTHORIZATION} has more than {HEADER_BYTES_MAX} bytes")
    if len(given) > 1:
        raise Unauthenticated(f"the header {AUTHORIZATION} is there more than once")
    if not given:
        return None
    return given[0] if isinstance(given[0], str) else given[0].decode("latin-1")


class Gate(Protocol):
    @property
    def is_on(self) -> bool: ...

    def known(self, given: Credentials) -> Principal | None:
        """Return the caller without waiting, if the credentials were verified lately; None: call `identify`."""
        ...

    async def identify(self, given: Credentials) -> Principal:
        """Return the caller; raises `Unauthenticated`, or `TryLater` while too many credentials wait for a check."""
        ...

    def allows(self, who: Principal, action: Action, resource: Resource) -> bool: ...

    def check(self, who: Principal, action: Action, resource: Resource, peer: str = "") -> None: ...

    def check_all(self, who: Principal, rights: Iterable[Right], peer: str = "") -> None:
        """Check all rights before anything is done."""
        ...

    def refusal(
        self, who: Principal, action: Action, resource: Resource, reason: str, peer: str = ""
    ) -> PermissionDenied:
        """Return the error of a caller without the right, after the audit log has it with the actual reason."""
        ...

    def rules_of(self, who: Principal) -> list[dict[str, Any]] | None:
        """Return the caller's grants as JSON values, for a process that decides without this gate: an SQL query.

        `grants_to_json` of `frazil.node.access.portable` makes them. None: the caller may do everything, as `LOCAL`
        does. Any thread may call it.
        """
        ...

    def request(self, who: Principal) -> None:
        """Count a request against the caller's quota; raises `QuotaExceeded`."""
        ...

    def transfer(self, who: Principal, size_bytes: int) -> None:
        """Count received or sent rows against the caller's quota; raises `QuotaExceeded` before they are taken."""
        ...

    def stream(self, who: Principal) -> AbstractContextManager[None]:
        """Count a stream for as long as it is open; raises `QuotaExceeded`."""
        ...


def has_lost(gate: Gate, settings: Settings, action: Action, resource: Resource, name: str) -> bool:
    """Whether a principal that does not call now has certainly lost a right.

    Roles that a token names are known only when it is sent.
    """
    tokens_grant = any(one.roles_claim is not None for one in settings.security.jwt)
    if name == LOCAL.name or (tokens_grant and name.startswith("jwt:")):
        return False
    return not gate.allows(Principal(name), action, resource)


class OpenGate:
    """Security is off."""

    is_on = False

    def known(self, given: Credentials) -> Principal | None:  # noqa: ARG002 - nobody is asked for credentials
        return ANONYMOUS

    async def identify(self, given: Credentials) -> Principal:  # noqa: ARG002 - nobody is asked for credentials
        return ANONYMOUS

    def allows(self, who: Principal, action: Action, resource: Resource) -> bool:
        return who is LOCAL or action not in WRITES or not is_reserved(resource)

    def check(self, who: Principal, action: Action, resource: Resource, peer: str = "") -> None:
        if not self.allows(who, action, resource):
            raise self.refusal(who, action, resource, "only this process writes there", peer)

    def check_all(self, who: Principal, rights: Iterable[Right], peer: str = "") -> None:
        for action, resource in rights:
            self.check(who, action, resource, peer)

    def refusal(
        self,
        who: Principal,
        action: Action,
        resource: Resource,
        reason: str,  # noqa: ARG002 - there is no audit log
        peer: str = "",  # noqa: ARG002 - there is no audit log
    ) -> PermissionDenied:
        return PermissionDenied(who.name, action, resource.kind, resource.name)

    def rules_of(self, who: Principal) -> list[dict[str, Any]] | None:  # noqa: ARG002 - everything is allowed
        return None

    def request(self, who: Principal) -> None:
        pass

    def transfer(self, who: Principal, size_bytes: int) -> None:
        pass

    def stream(self, who: Principal) -> AbstractContextManager[None]:  # noqa: ARG002 - nothing is limited
        return nullcontext()


class Verifier(Protocol):
    """One kind of credentials: API keys, tokens of an issuer, certificates."""

    def cached(self, secret: str) -> Principal | None: ...

    async def verify(self, secret: str) -> Principal | None:
        """Return the caller; None if these credentials are not of this kind. Raises `Unauthenticated` if they are
        wrong, and `TryLater` if too many wait."""
        ...

    def is_valid(self, who: Principal) -> bool:
        """Whether the caller's credentials still exist, for callers that this verifier identified."""
        ...
