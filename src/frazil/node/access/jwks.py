"""Keys that verify tokens: a JSON Web Key Set from a file or an address, or a shared secret from a file.

    KeySource   the current keys of one issuer, and a thread that keeps them current
    read_keys   a key set from its bytes: RS256 and ES256 alone

A file is read again when it changes. An address is fetched every few minutes, and sooner if a token names an
unknown key, but never more often than `FETCH_INTERVAL_MIN_S`. A source that can't be read keeps its last keys and
says so once in the log. A key set without a usable key is read: it withdraws all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from frazil.core.clock import Clock
from frazil.core.errors import InvalidSettings
from frazil.core.settings.security import JwtSettings
from frazil.node.access.jwt.fetching import fetched

JWKS_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
KID_MAX = 256
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 32, 4096
FETCH_INTERVAL_S = 300
FETCH_INTERVAL_MIN_S = 10
FILE_INTERVAL_S = 1

_log = logging.getLogger("frazil.access")


class BadKeys(Exception):
    """Keys that can't be used; the message says why and contains no key."""


class NoKeys(BadKeys):
    """A key set that is well-formed and has no usable key: its issuer trusts none any more."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """One key. A key with `kid` None is taken for tokens without `kid`; a shared secret for all."""

    algorithm: str
    kid: str | None
    thumbprint: bytes
    """Identifies the key's content."""
    key: Any = field(repr=False)


class Keys:
    """A set of keys, by `kid` and algorithm."""

    def __init__(self, keys: tuple[TokenKey, ...] = ()) -> None:
        self._keys = keys
        self._thumbprints = frozenset(key.thumbprint for key in keys)

    def find(self, kid: str | None, algorithm: str) -> TokenKey | None:
        """Return the key of a token. Without `kid` there must be only one key for the algorithm."""
        found = [key for key in self._keys if key.algorithm == algorithm]
        if kid is not None and algorithm != "HS256":
            found = [key for key in found if key.kid == kid]
        return found[0] if len(found) == 1 else None

    def holds(self, thumbprint: bytes) -> bool:
        return thumbprint in self._thumbprints

    def __len__(self) -> int:
        return len(self._keys)


class KeySource:
    """The keys of one issuer. `start` begins the thread; `poll` is one round of it."""

    def __init__(self, settings: JwtSettings, clock: Clock, where: str = "security.jwt") -> None:
        """`where` names the settings in errors. A file must be readable; an address may be away."""
        self.keys = Keys()
        """Replaced as a whole when the keys change."""
        self._name = settings.issuer
        self._clock = clock
        self._url = settings.jwks_url
        self._path, self._read = _file_of(settings)
        self._stamp: tuple[int, ...] = ()
        self._polled_us: int | None = None
        self._is_wanted = False
        self._problem = ""
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="frazil-jwks", daemon=True)
        if self._path is not None:
            self._load(lambda: self._from_file(self._path))
            if not self.keys:
                name = "secret_file" if settings.secret_file is not None else "jwks_file"
                raise InvalidSettings(f"{where}.{name}: {self._problem}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread without waiting for a fetch under way."""
        self._is_closed = True
        self._wake.set()

    def want(self) -> None:
        """Ask for a refresh, since a token names an unknown key. It happens soon, or not if there was one just now."""
        if self._url is not None and not self._is_wanted:
            self._is_wanted = True
            self._wake.set()

    @property
    def problem(self) -> str:
        """Why the last read failed; empty if it did not."""
        return self._problem

    def poll(self) -> None:
        """Read the keys if it is time to."""
        if self._path is not None:
            path, stamp = self._path, _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._load(lambda: self._from_file(path))
        elif self._url is not None and self._is_due():
            url = self._url
            self._is_wanted = False
            self._load(lambda: read_keys(fetched(url, JWKS_BYTES_MAX)))
            self._polled_us = self._clock.monotonic_us()

    def _is_due(self) -> bool:
        if self._polled_us is None:
            return True
        passed_s = (self._clock.monotonic_us() - self._polled_us) / 1_000_000
        is_soon = self._is_wanted or bool(self._problem)
        return passed_s >= (FETCH_INTERVAL_MIN_S if is_soon else FETCH_INTERVAL_S)

    def _from_file(self, path: Path | None) -> tuple[TokenKey, ...]:
        assert path is not None
        self._stamp = _stamp(path)
        limit = JWKS_BYTES_MAX
        with path.open("rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise BadKeys(f"it has more than {limit} bytes")
        return self._read(data)

    def _load(self, read: Callable[[], tuple[TokenKey, ...]]) -> None:
        try:
            self.keys = Keys(read())
        except (BadKeys, OSError) as error:
            problem = (error.strerror if isinstance(error, OSError) else None) or str(error)[:200]
            where = self._path or _shown(self._url)
            if isinstance(error, NoKeys):
                self.keys = Keys()
            if problem != self._problem:
                kept = "the last ones stay" if self.keys else "its tokens are refused"
                _log.warning(
                    "the keys of the issuer %r can't be read from %s: %s; %s", self._name, where, problem, kept
                )
            self._problem = problem
        else:
            if self._problem:
                _log.warning("the keys of the issuer %r are read again", self._name)
            self._problem = ""

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self.poll()
            except Exception:  # noqa: BLE001 - logged; the last keys stay
                _log.exception("the keys of the issuer %r can't be read", self._name)
            self._wake.wait(FILE_INTERVAL_S)
            self._wake.clear()


def read_keys(data: bytes) -> tuple[TokenKey, ...]:
    """Read a JSON Web Key Set without its keys for other purposes and algorithms; raises `NoKeys` if none is left."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise BadKeys("it is no JSON") from None
    listed = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise BadKeys("it is no JSON Web Key Set: it has no list `keys`")
    if len(listed) > KEYS_MAX:
        raise BadKeys(f"it has more than {KEYS_MAX} keys")
    found = [key for one in listed if isinstance(one, dict) and (key := _key(one)) is not None]
    if not found:
        raise NoKeys(f"it has no key for RS256 ({RSA_BITS_MIN} bits or more) or ES256")
    names = [(key.algorithm, key.kid) for key in found if key.kid is not None]
    if len(names) != len(set(names)):
        raise BadKeys("two of its keys have the same kid")
    return tuple(found)


def read_secret(data: bytes) -> tuple[TokenKey, ...]:
    """Read a shared secret, without the newline at its end."""
    secret = data.rstrip(b"\r\n")
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise BadKeys(f"a shared secret must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, not {len(secret)}")
    if secret.lstrip().startswith((b"-----BEGIN", b"ssh-")):
        raise BadKeys("it is a key file, which is no shared secret")
    return (TokenKey("HS256", None, hashlib.sha256(b"frazil" + secret).digest(), secret),)


def _key(content: dict[str, Any]) -> TokenKey | None:
    """Return a public key, made of its public parts alone, or None if it is not for our signatures."""
    kind, kid = content.get("kty"), content.get("kid")
    if content.get("use", "sig") != "sig" or not (kid is None or (isinstance(kid, str) and 0 < len(kid) <= KID_MAX)):
        return None
    if "key_ops" in content and not (isinstance(content["key_ops"], list) and "verify" in content["key_ops"]):
        return None
    if kind == "RSA":
        algorithm, parts = "RS256", ["kty", "n", "e"]
    elif kind == "EC" and content.get("crv") == "P-256":
        algorithm, parts = "ES256", ["kty", "crv", "x", "y"]
    else:
        return None
    public = {name: content.get(name) for name in parts}
    if content.get("alg", algorithm) != algorithm or not all(isinstance(value, str) for value in public.values()):
        return None
    if sum(len(str(value)) for value in public.values()) > RSA_BITS_MAX // 4:
        return None
    try:
        key: Any = RSAAlgorithm.from_jwk(public) if kind == "RSA" else ECAlgorithm.from_jwk(public)
    except (PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        return None
    thumbprint = hashlib.sha256(json.dumps(public, sort_keys=True).encode()).digest()
    return TokenKey(algorithm, kid, thumbprint, key)


def _file_of(settings: JwtSettings) -> tuple[Path | None, Callable[[bytes], tuple[TokenKey, ...]]]:
    if settings.secret_file is not None:
        return settings.secret_file, read_secret
    return settings.jwks_file, read_keys


def _shown(url: str | None) -> str:
    """Return an address without what may be secret in it: user, password, query."""
    found = urlsplit(url or "")
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}{found.path}"


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
