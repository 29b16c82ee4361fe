"""API keys: their form, their slow hash, and their record in the metadata store.

    frz_{id}_{secret}      id: 12 characters, public; secret: 256 random bits, as 52 characters
    {"owner", "description", "created_us", "expires_us", "rotated_us", "secrets": [{"salt", "hash", "n", "r", "p",
    "until_us"}, …]}

The secret itself is stored nowhere. A rotated key has two secrets until the overlap has passed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from frazil.core.errors import FrazilError, InvalidInput

PREFIX = "frz_"
KEY_BYTES_MAX = 256
"""Longer credentials are refused before they are looked at."""
OWNER_LENGTH_MAX, DESCRIPTION_LENGTH_MAX = 128, 512
LIFETIME_MS_MAX = 10 * 366 * 86_400_000
OVERLAP_MS_MAX = 30 * 86_400_000
PRINCIPAL_PREFIX = "key:"
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
_HASH_BYTES, _SALT_BYTES = 32, 16
_MEMORY_BYTES_MAX = 64 * 1024 * 1024
_FORM = re.compile(r"frz_([a-z2-7]{12})_([a-z2-7]{52})", re.ASCII)
_ID = re.compile(r"[a-z2-7]{12}", re.ASCII)


class UnreadableKey(FrazilError):
    """A key record that is damaged, or that a newer version wrote."""


class GivenKey(NamedTuple):
    """The two parts of a key that a caller presents."""

    id: str
    secret: str


@dataclass(frozen=True, slots=True)
class SecretHash:
    """The slow hash of one secret, with the parameters that made it."""

    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    n: int = SCRYPT_N
    r: int = SCRYPT_R
    p: int = SCRYPT_P
    until_us: int | None = None
    """The secret is valid before this time; None: as long as its key."""

    @classmethod
    def of(cls, secret: str) -> SecretHash:
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(salt, _hashed(secret, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P))

    def fits(self, secret: str) -> bool:
        """Hash the secret, which takes about 50 ms, and compare in constant time."""
        return hmac.compare_digest(_hashed(secret, self.salt, self.n, self.r, self.p), self.digest)

    def is_current(self, now_us: int) -> bool:
        return self.until_us is None or now_us < self.until_us


@dataclass(frozen=True, slots=True)
class KeyRecord:
    id: str
    owner: str
    description: str
    created_us: int
    expires_us: int | None
    rotated_us: int | None
    secrets: tuple[SecretHash, ...]
    """The newest first, and at most one before it."""

    @property
    def principal(self) -> str:
        return PRINCIPAL_PREFIX + self.id

    def is_current(self, now_us: int) -> bool:
        return self.expires_us is None or now_us < self.expires_us

    def matching(self, secret: str, now_us: int) -> SecretHash | None:
        """Return the current secret that this one is, after a slow hash of each."""
        fitting = [one for one in self.secrets if one.is_current(now_us) and one.fits(secret)]
        return fitting[0] if fitting and self.is_current(now_us) else None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the hashes."""
        older = self.secrets[1:]
        return {
            "id": self.id,
            "principal": self.principal,
            "owner": self.owner,
            "description": self.description,
            "created_us": self.created_us,
            "expires_us": self.expires_us,
            "rotated_us": self.rotated_us,
            "old_secret_until_us": older[0].until_us if older else None,
        }

    def encode(self) -> bytes:
        hashes = [
            {
                "salt": base64.b64encode(one.salt).decode(),
                "hash": base64.b64encode(one.digest).decode(),
                "n": one.n,
                "r": one.r,
                "p": one.p,
                "until_us": one.until_us,
            }
            for one in self.secrets
        ]
        content = {
            "owner": self.owner,
            "description": self.description,
            "created_us": self.created_us,
            "expires_us": self.expires_us,
            "rotated_us": self.rotated_us,
            "secrets": hashes,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, key_id: str, value: bytes) -> KeyRecord:
        try:
            read = json.loads(value)
            hashes = tuple(_decoded_hash(one) for one in read["secrets"])
            return cls(
                key_id,
                str(read["owner"]),
                str(read["description"]),
                int(read["created_us"]),
                _optional(read["expires_us"]),
                _optional(read["rotated_us"]),
                hashes,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableKey(f"the record of the key {key_id!a:.40} can't be read: {type(error).__name__}") from None


def parse_key(text: str) -> GivenKey | None:
    """Return the parts of a key; None if it has not exactly the form of one."""
    found = _FORM.fullmatch(text) if len(text) <= KEY_BYTES_MAX else None
    return None if found is None else GivenKey(found[1], found[2])


def is_key_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def new_key(owner: str, description: str, now_us: int, lifetime_ms: int | None) -> tuple[KeyRecord, str]:
    """Make a key; returns its record and the key itself, which is shown once."""
    _check_text("owner", owner, 1, OWNER_LENGTH_MAX)
    _check_text("description", description, 0, DESCRIPTION_LENGTH_MAX)
    if lifetime_ms is not None and not 1 <= lifetime_ms <= LIFETIME_MS_MAX:
        raise InvalidInput(f"lifetime_ms: must be between 1 and {LIFETIME_MS_MAX}", field="lifetime_ms")
    key_id, secret = _random_text(8)[:12], _random_text(32)
    expires_us = None if lifetime_ms is None else now_us + lifetime_ms * 1_000
    record = KeyRecord(key_id, owner, description, now_us, expires_us, None, (SecretHash.of(secret),))
    return record, f"{PREFIX}{key_id}_{secret}"


def rotated_key(record: KeyRecord, now_us: int, overlap_ms: int) -> tuple[KeyRecord, str]:
    """Give a key a new secret; the newest one until now stays valid for the overlap."""
    if not 0 <= overlap_ms <= OVERLAP_MS_MAX:
        raise InvalidInput(f"overlap_ms: must be between 0 and {OVERLAP_MS_MAX}", field="overlap_ms")
    secret = _random_text(32)
    older = (replace(record.secrets[0], until_us=now_us + overlap_ms * 1_000),) if overlap_ms else ()
    made = replace(record, rotated_us=now_us, secrets=(SecretHash.of(secret), *older))
    return made, f"{PREFIX}{record.id}_{secret}"


def _hashed(secret: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY_BYTES_MAX + 1024 * 1024, dklen=_HASH_BYTES
    )


def _decoded_hash(one: Any) -> SecretHash:
    found = SecretHash(
        base64.b64decode(one["salt"], validate=True),
        base64.b64decode(one["hash"], validate=True),
        int(one["n"]),
        int(one["r"]),
        int(one["p"]),
        _optional(one["until_us"]),
    )
    if len(found.digest) != _HASH_BYTES or not 0 < 128 * found.n * found.r * found.p <= _MEMORY_BYTES_MAX:
        raise ValueError("it has other parameters than this version accepts")
    return found


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _random_text(size_bytes: int) -> str:
    return base64.b32encode(secrets.token_bytes(size_bytes)).decode().rstrip("=").lower()


def _check_text(name: str, value: str, length_min: int, length_max: int) -> None:
    if not length_min <= len(value) <= length_max or not value.isprintable():
        raise InvalidInput(f"{name}: must have {length_min} to {length_max} printable characters", field=name)
