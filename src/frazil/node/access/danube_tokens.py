"""Tokens that this server makes for Danube clients.

Clients up to version 0.3 call `Authenticate` with an API key and send the token from its answer with every further
call; they keep it for an hour. Later clients send a token that they were given, which may be an API key as it is.

Such a token is a JWT (HS256) with the key's principal as subject. Its secret is random, made once for a cluster:

    /security/danube_secret     {"secret": 32 bytes in base64}

A token is valid as long as its key: a revoked, expired or rotated key ends its tokens at once, since each names the
secret that it was made for. Deleting the record ends all tokens when the servers start again. Who can read the metadata
store can make tokens.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any

import jwt

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, Unauthenticated
from frazil.core.principal import Principal
from frazil.meta.store import ABSENT, MetaStore
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.jwks import TokenKey
from frazil.node.access.jwt.cache import TokenCache
from frazil.node.access.jwt.form import TOKEN_BYTES_MAX, BadToken, check_audience, expiry_us, parsed
from frazil.node.access.key_verifier import KeyHolder, KeyVerifier
from frazil.node.access.keys import PRINCIPAL_PREFIX
from frazil.node.access.tokens import OWN_ISSUER, check_signature

SECRET_KEY = "/security/danube_secret"  # noqa: S105 - the name of a record
SECRET_BYTES = 32
AUDIENCE = "danube"
ALGORITHM = "HS256"
GRACE_S = 30
"""Clients count the lifetime from the answer, which they get a little later."""
CACHED_MAX = 10_000
SECRET_CLAIM = "key"  # noqa: S105 - the name of a claim
"""CreationClaim that names the key's secret, by a hash of its hash."""


class DanubeTokens:
    """Makes such tokens, and verifies them as a `Verifier`. Used on one event loop."""

    def __init__(
        self, secret: bytes, keys: KeyVerifier, directory: AccessDirectory, clock: Clock, lifetime_s: int
    ) -> None:
        """`keys` verifies API keys, and limits how many wrong ones are tried."""
        self._key = TokenKey(ALGORITHM, None, b"", secret)
        self._keys = keys
        self._directory = directory
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._cache: TokenCache[Principal] = TokenCache(CACHED_MAX)

    async def issue(self, api_key: str) -> str:
        """Exchange an API key for a token; raises `Unauthenticated` if it is none, or `TryLater`."""
        who = self._keys.cached(api_key) or await self._keys.verify(api_key)
        if not isinstance(who, KeyHolder):
            raise Unauthenticated
        now_s = self._clock.now_us() // 1_000_000
        expires_s = now_s + self._lifetime_s
        if who.expires_us is not None:
            expires_s = min(expires_s, who.expires_us // 1_000_000)
        claims: dict[str, Any] = {"iss": OWN_ISSUER, "aud": AUDIENCE, "sub": who.name, "iat": now_s, "exp": expires_s}
        claims[SECRET_CLAIM] = _name_of(who.digest)
        return jwt.encode(claims, self._key.key, ALGORITHM)

    def cached(self, secret: str) -> Principal | None:
        found = self._cache.get(secret) if len(secret) <= TOKEN_BYTES_MAX else None
        if found is None or found.expires_us is None:
            return None
        if self._clock.now_us() < found.expires_us and self._keys.is_valid(found):
            return found
        self._cache.remove(secret)
        return None

    async def verify(self, secret: str) -> Principal | None:
        """Return the caller; None if the token is not one of this server's."""
        try:
            found = self._verified(secret)
        except BadToken:
            raise Unauthenticated from None
        if found is not None:
            self._cache.put(secret, found)
        return found

    def is_valid(self, who: Principal) -> bool:
        return self._keys.is_valid(who)

    def _verified(self, secret: str) -> Principal | None:
        token = parsed(secret)
        if token is None or token.issuer != OWN_ISSUER:
            return None
        check_signature(secret, self._key)
        check_audience(token.claims, AUDIENCE)
        expires_us = expiry_us(token.claims, self._clock.now_us(), GRACE_S)
        who = self._holder(token.claims, expires_us)
        if who is None or who.expires_us is None or who.expires_us <= self._clock.now_us():
            raise BadToken("sub: its key is revoked or has expired")
        if not self._keys.is_valid(who):
            raise BadToken("sub: its key is revoked")
        return who

    def _holder(self, claims: dict[str, Any], expires_us: int) -> KeyHolder | None:
        """Return the holder of the token's key, if the key still has the secret that the token was made for."""
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject.startswith(PRINCIPAL_PREFIX):
            raise BadToken("sub: must be a key")
        record = self._directory.key(subject.removeprefix(PRINCIPAL_PREFIX))
        if record is None:
            return None
        for one in record.secrets:
            if _name_of(one.digest) == claims.get(SECRET_CLAIM):
                ends = [end for end in (expires_us, record.expires_us, one.until_us) if end is not None]
                return KeyHolder(subject, expires_us=min(ends), digest=one.digest)
        return None


def _name_of(digest: bytes) -> str:
    return hashlib.sha256(digest).hexdigest()[:16]


def danube_secret(store: MetaStore) -> bytes:
    """Return the secret of the cluster; the first server makes it. Blocks."""
    made = json.dumps({"secret": base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()}).encode()
    entry = store.get(SECRET_KEY)
    if entry is None and store.put_if(SECRET_KEY, made, ABSENT) is None:
        entry = store.get(SECRET_KEY)  # another server was faster
    return _read(made if entry is None else entry.value)


def _read(value: bytes) -> bytes:
    try:
        content: Any = json.loads(value)
        secret = base64.b64decode(content["secret"], validate=True)
    except (ValueError, KeyError, TypeError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise FrazilError(f"the metadata store holds a record {SECRET_KEY} that can't be read; delete it")
    return secret
