"""Tokens (JWT) of trusted issuers.

A token is accepted if an issuer of the settings has signed it by one of its configured algorithms, for its audience,
and the time is between `nbf` and `exp`. The issuer is chosen by `iss`, and only its own keys are tried, so
one issuer can't sign for another.

Names of callers: `jwt:SUBJECT` with one issuer, `jwt:ISSUER/SUBJECT` with several. `/` in a subject is
percent-encoded. So a name has one reading, and no issuer can give a name that belongs to another, or to a configuration
with another number of issuers. Who adds a second issuer binds the roles again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from frazil.core.clock import Clock
from frazil.core.errors import InvalidSettings, TryLater, Unauthenticated
from frazil.core.principal import Principal
from frazil.core.settings.security import JwtSettings
from frazil.node.access.jwks import KeySource, TokenKey
from frazil.node.access.jwt.cache import TokenCache
from frazil.node.access.jwt.form import (
    TOKEN_BYTES_MAX,
    BadToken,
    ParsedToken,
    check_audience,
    expiry_us,
    parsed,
    roles_of,
    subject_of,
)
from frazil.node.access.roles import PRINCIPAL_BYTES_MAX
from frazil.node.threads import Threads

OWN_ISSUER = "frazil"
"""Issuer of the tokens that this server makes itself; see `danube_tokens`."""
PRINCIPAL_PREFIX = "jwt:"
CACHED_MAX = 10_000
WAITING_MAX = 256
"""Tokens that wait for a check of their signature."""
RETRY_AFTER_MS = 100
LOG_INTERVAL_S = 60
_THREADS = 2

_log = logging.getLogger("frazil.access")
_signatures = PyJWS()


class _Issuer(NamedTuple):
    settings: JwtSettings
    source: KeySource


@dataclass(frozen=True, slots=True)
class TokenHolder(Principal):
    """The caller with a token. It is valid as long as the key that has signed the token is trusted."""

    source: KeySource | None = field(default=None, repr=False, compare=False)
    thumbprint: bytes = field(default=b"", repr=False, compare=False)

    @property
    def is_trusted(self) -> bool:
        return self.source is None or self.source.keys.holds(self.thumbprint)


class TokenVerifier:
    """Verifies tokens. A `Verifier`; used on one event loop, with threads of its own for signatures."""

    def __init__(
        self, issuers: Sequence[JwtSettings], clock: Clock, cached_max: int = CACHED_MAX, waiting_max: int = WAITING_MAX
    ) -> None:
        """Raises `InvalidSettings` if a file of keys can't be used. An address that is away is tried again."""
        self._issuers: dict[str, _Issuer] = {}
        for number, one in enumerate(issuers):
            where = f"security.jwt.{number}"
            if one.issuer in self._issuers or one.issuer == OWN_ISSUER:
                why = "is the server's own" if one.issuer == OWN_ISSUER else "is given twice"
                raise InvalidSettings(f"{where}.issuer: {one.issuer!r:.80} {why}")
            self._issuers[one.issuer] = _Issuer(one, KeySource(one, clock, where))
        self._clock = clock
        self._cache: TokenCache[TokenHolder] = TokenCache(cached_max)
        self._waiting_max = waiting_max
        self._waiting = 0
        self._threads = Threads("frazil-tokens", _THREADS)
        self._logged_us: dict[str, int] = {}

    def start(self) -> None:
        """Keep the keys current, by one thread for each issuer."""
        for issuer in self._issuers.values():
            issuer.source.start()

    def close(self) -> None:
        for issuer in self._issuers.values():
            issuer.source.close()
        self._threads.close()

    @property
    def sources(self) -> list[KeySource]:
        return [issuer.source for issuer in self._issuers.values()]

    def cached(self, secret: str) -> Principal | None:
        """Return the caller of a token that was verified before, has not expired, and whose key is still trusted."""
        if len(secret) > TOKEN_BYTES_MAX:
            return None
        found = self._cache.get(secret)
        if found is None:
            return None
        if found.is_trusted and (found.expires_us is None or self._clock.now_us() < found.expires_us):
            return found
        self._cache.remove(secret)
        return None

    async def verify(self, secret: str) -> Principal | None:
        """Return the caller; None if this is no token, or of an unknown issuer."""
        if len(secret) > TOKEN_BYTES_MAX:
            raise Unauthenticated
        if not self._issuers or secret.count(".") != 2:
            return None
        if self._waiting >= self._waiting_max:
            raise TryLater(
                f"{self._waiting} tokens wait for a check; try again in {RETRY_AFTER_MS} ms",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._waiting += 1
        try:
            return await self._threads.run(self.check, secret)
        finally:
            self._waiting -= 1

    def is_valid(self, who: Principal) -> bool:
        """Whether the key that has signed the caller's token is still trusted. True for other kinds of callers.

        The time is the gate's to check.
        """
        return not isinstance(who, TokenHolder) or who.is_trusted

    def check(self, secret: str) -> TokenHolder | None:
        """Verify a token now, in this thread."""
        token: ParsedToken | None = None
        try:
            token = parsed(secret)
            issuer = None if token is None else self._issuers.get(token.issuer)
            if token is None or issuer is None:
                return None
            found = self._verified(secret, token, issuer)
        except BadToken as error:
            self._tell("" if token is None else token.issuer, str(error))
            expired = str(error).startswith("exp: the token")
            raise (Unauthenticated("the token has expired") if expired else Unauthenticated()) from None
        self._cache.put(secret, found)
        return found

    def _verified(self, secret: str, token: ParsedToken, issuer: _Issuer) -> TokenHolder:
        settings, key = issuer.settings, _key_of(token, issuer)
        check_signature(secret, key)
        check_audience(token.claims, settings.audience)
        expires_us = expiry_us(token.claims, self._clock.now_us(), settings.clock_skew_s)
        subject = subject_of(token.claims, settings.subject_claim)
        name = PRINCIPAL_PREFIX + (subject if len(self._issuers) == 1 else f"{settings.issuer}/{subject}")
        if len(name.encode()) > PRINCIPAL_BYTES_MAX:
            raise BadToken(f"{settings.subject_claim}: the caller's name has more than {PRINCIPAL_BYTES_MAX} bytes")
        roles = roles_of(token.claims, settings.roles_claim)
        return TokenHolder(name, roles, expires_us, issuer.source, key.thumbprint)

    def _tell(self, issuer: str, why: str) -> None:
        """Log why a token was refused, at most once a minute for each reason: floods leave few lines."""
        now_us, name = self._clock.monotonic_us(), f"{issuer if issuer in self._issuers else ''} {why}"
        last_us = self._logged_us.get(name)
        if last_us is not None and now_us - last_us < LOG_INTERVAL_S * 1_000_000:
            return
        self._logged_us[name] = now_us  # reasons are fixed texts, and issuers are those of the settings
        _log.warning("a token of the issuer %r is refused: %s", issuer[:200], why)


def check_signature(secret: str, key: TokenKey) -> None:
    """Raise `BadToken` unless the key has signed the token by the algorithm of the key, whatever the token names."""
    try:
        _signatures.decode_complete(secret, key.key, algorithms=[key.algorithm])
    except (PyJWTError, ValueError, TypeError):
        raise BadToken("its signature is wrong") from None


def _key_of(token: ParsedToken, issuer: _Issuer) -> TokenKey:
    """Return the key of a token. An unknown one makes its issuer's keys be fetched again, soon."""
    if token.algorithm not in issuer.settings.algorithms:
        raise BadToken("alg: not one of the issuer's algorithms")
    key = issuer.source.keys.find(token.kid, token.algorithm)
    if key is None:
        issuer.source.want()
        problem = issuer.source.problem
        raise BadToken("kid: no such key" if not problem else "kid: no such key, since the issuer's keys can't be read")
    return key
