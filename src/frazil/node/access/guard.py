"""The gate while security is on: who calls, by verifiers; and what they may do, by the directory.

A check costs microseconds: decisions are kept by caller, action and resource, and dropped when the directory changes.
Whether the credentials are still valid is checked each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from frazil.core.access import NAME_LENGTH_MAX, Action, Resource, Right
from frazil.core.clock import Clock
from frazil.core.errors import PermissionDenied, Unauthenticated
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.gate import HEADER_BYTES_MAX, Credentials, Verifier
from frazil.node.access.portable import grants_to_json
from frazil.node.access.roles import PRINCIPAL_BYTES_MAX, decide

DECISIONS_MAX = 65_536
_SCHEME = "bearer "
_NO_STREAM = nullcontext()

Decision = tuple[str, tuple[str, ...], Action, Resource]


class AuditLog(Protocol):
    def wants(self, action: str, allowed: bool) -> bool: ...

    def record(
        self, who: Principal, action: str, resource: str, allowed: bool, peer: str = "", reason: str = ""
    ) -> None: ...


class CallerQuotas(Protocol):
    def request(self, who: Principal) -> None: ...

    def transfer(self, who: Principal, size_bytes: int) -> None: ...

    def stream(self, who: Principal) -> AbstractContextManager[None]: ...


class _Decisions:
    """Decisions by one generation of the directory. A late one is added to the decisions that it belongs to."""

    __slots__ = ("by_right", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.by_right: dict[Decision, bool] = {}


class SecureGate:
    """Security is on. Any thread may call it; `identify` runs on any event loop."""

    is_on = True

    def __init__(
        self,
        directory: AccessDirectory,
        verifiers: Sequence[Verifier],
        clock: Clock,
        *,
        is_local: Callable[[str], bool] | None = None,
        audit: AuditLog | None = None,
        quotas: CallerQuotas | None = None,
        validity: Mapping[str, Verifier] | None = None,
    ) -> None:
        """`is_local` tells the local token. Verifiers are asked in their order.

        `validity` names the verifier that knows whether callers of a kind (`key`, `jwt`) are still valid; for other
        kinds all are asked.
        """
        self.directory = directory
        self.verifiers = tuple(verifiers)
        self._clock = clock
        self._is_local = is_local
        self._audit = audit
        self._quotas = quotas
        self._validity = {f"{kind}:": (one.is_valid,) for kind, one in (validity or {}).items()}
        self._every_validity = tuple(one.is_valid for one in self.verifiers)
        self._decisions = _Decisions(directory.generation)

    # --- who

    def known(self, given: Credentials) -> Principal | None:
        if given.authorization is None:
            holder = _certificate_holder(given)
            return holder if holder is not None and self._is_valid(holder) else None
        secret = _bearer(given.authorization)
        if secret is None:
            return None
        if self._is_local is not None and self._is_local(secret):
            return LOCAL
        for verifier in self.verifiers:
            found = verifier.cached(secret)
            if found is not None:
                return found if self._is_valid(found) else None
        return None

    async def identify(self, given: Credentials) -> Principal:
        """The header decides if there is one: a wrong one is refused even with a good certificate."""
        try:
            return await self._identified(given)
        except Unauthenticated as error:
            if self._audit is not None:
                self._audit.record(ANONYMOUS, "identify", "", False, given.peer, error.message.partition(";")[0])
            raise

    async def _identified(self, given: Credentials) -> Principal:
        found = self.known(given)
        if found is not None:
            return found
        secret = None if given.authorization is None else _bearer(given.authorization)
        if secret is None:
            raise Unauthenticated
        for verifier in self.verifiers:
            found = await verifier.verify(secret)
            if found is not None:
                if not self._is_valid(found):  # revoked during the check
                    raise Unauthenticated
                return found
        raise Unauthenticated

    def _is_valid(self, who: Principal) -> bool:
        if who.expires_us is not None and self._clock.now_us() >= who.expires_us:
            return False
        for is_valid in self._validity.get(who.name[:4], self._every_validity):  # noqa: SIM110 - faster than `all`
            if not is_valid(who):
                return False
        return True

    # --- what

    def allows(self, who: Principal, action: Action, resource: Resource) -> bool:
        return who is LOCAL or (self._is_valid(who) and self._decide(who, action, resource))

    def check(self, who: Principal, action: Action, resource: Resource, peer: str = "") -> None:
        self._refuse_unless(who, action, resource, peer)
        self._record_allowed(who, action, resource, peer)

    def check_all(self, who: Principal, rights: Iterable[Right], peer: str = "") -> None:
        wanted = tuple(rights)
        for action, resource in wanted:
            self._refuse_unless(who, action, resource, peer)
        for action, resource in wanted:
            self._record_allowed(who, action, resource, peer)

    def rules_of(self, who: Principal) -> list[dict[str, Any]] | None:
        if who is LOCAL:
            return None
        if not self._is_valid(who):
            raise Unauthenticated("the credentials have expired or were revoked")
        return grants_to_json(self.directory.grants(who))

    def _refuse_unless(self, who: Principal, action: Action, resource: Resource, peer: str) -> None:
        if who is LOCAL:
            return
        if not self._is_valid(who):
            self._record(who, action, resource, peer, "its credentials have expired or were revoked")
            raise Unauthenticated("the credentials have expired or were revoked")
        if not self._decide(who, action, resource):
            raise self.refusal(who, action, resource, "no role allows it, or one denies it", peer)

    def refusal(
        self, who: Principal, action: Action, resource: Resource, reason: str, peer: str = ""
    ) -> PermissionDenied:
        self._record(who, action, resource, peer, reason)
        return PermissionDenied(who.name, action, resource.kind, resource.name)

    def _decide(self, who: Principal, action: Action, resource: Resource) -> bool:
        generation = self.directory.generation  # before the grants: they are of this generation, or of a later one
        decisions = self._decisions
        if decisions.generation != generation:
            decisions = self._decisions = _Decisions(generation)
        wanted = (who.name, who.roles, action, resource)
        found = decisions.by_right.get(wanted)
        if found is None:
            found = decide(self.directory.grants(who), action, resource)
            if len(resource.name) > NAME_LENGTH_MAX:
                return found
            if len(decisions.by_right) >= DECISIONS_MAX:
                decisions = self._decisions = _Decisions(generation)
            decisions.by_right[wanted] = found
        return found

    def _record(self, who: Principal, action: Action, resource: Resource, peer: str, reason: str) -> None:
        if self._audit is not None:
            self._audit.record(who, action, str(resource), False, peer, reason)

    def _record_allowed(self, who: Principal, action: Action, resource: Resource, peer: str) -> None:
        if self._audit is not None and self._audit.wants(action, True):
            self._audit.record(who, action, str(resource), True, peer)

    # --- how much

    def request(self, who: Principal) -> None:
        if self._quotas is not None and who is not LOCAL:
            self._quotas.request(who)

    def transfer(self, who: Principal, size_bytes: int) -> None:
        if self._quotas is not None and who is not LOCAL:
            self._quotas.transfer(who, size_bytes)

    def stream(self, who: Principal) -> AbstractContextManager[None]:
        return _NO_STREAM if self._quotas is None or who is LOCAL else self._quotas.stream(who)


def _bearer(header: str) -> str | None:
    """Return the secret of `Bearer SECRET`; None for anything else."""
    if len(header) > HEADER_BYTES_MAX or header[: len(_SCHEME)].lower() != _SCHEME:
        return None
    secret = header[len(_SCHEME) :].strip()
    return secret if secret and secret.isascii() and secret.isprintable() else None


def _certificate_holder(given: Credentials) -> Principal | None:
    """Return the caller by its verified client certificate."""
    name = given.certificate
    if not name or not name.isprintable() or len(name.encode("utf-8", "replace")) > PRINCIPAL_BYTES_MAX:
        return None
    return Principal(f"cert:{name}", expires_us=given.certificate_expires_us)
