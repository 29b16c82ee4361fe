"""Issuers of tokens for tests: their keys, key sets, and tokens that are right or wrong in one way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from frazil.core.settings.security import JwtSettings

ISSUER, AUDIENCE = "https://issuer.example", "frazil-test"
NOW_S = 1_700_000_000
SECRET = "s3cret-of-the-issuer-with-more-than-32-bytes"


def rsa_key(bits: int = 2048) -> Any:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def ec_key(curve: ec.EllipticCurve | None = None) -> Any:
    return ec.generate_private_key(curve or ec.SECP256R1())


def public_jwk(key: Any, kid: str | None, **others: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found = dict(kind.to_jwk(key.public_key(), as_dict=True))
    found.pop("key_ops", None)
    return found | ({} if kid is None else {"kid": kid}) | others


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def public_pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    return pem


def claims(**changed: Any) -> dict[str, Any]:
    """Right claims with changes; None leaves a claim out."""
    right = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 600}
    return {name: value for name, value in (right | changed).items() if value is not None}


def signed(key: Any, kid: str | None = None, algorithm: str = "RS256", **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm=algorithm, headers=None if kid is None else {"kid": kid})


def part(content: Any) -> str:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hs256(header: Any, payload: Any, secret: bytes) -> str:
    """A token signed by hand, with whatever header and payload, which may be bytes."""
    text = f"{part(header)}.{part(payload)}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def shared(folder: Path, secret: str = SECRET, **others: Any) -> JwtSettings:
    path = folder / f"secret-{len(list(folder.iterdir()))}"
    path.write_text(secret + "\n")
    return JwtSettings(
        **{"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ("HS256",), "secret_file": path} | others
    )


def public(path: Path, content: bytes, **others: Any) -> JwtSettings:
    path.write_bytes(content)
    given = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ("RS256", "ES256"), "jwks_file": path}
    return JwtSettings(**given | others)
