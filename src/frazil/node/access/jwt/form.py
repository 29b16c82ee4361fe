"""Parse tokens (JWT in compact form) strictly, before and after their signature is checked. Pure functions.

Nothing here trusts the token: what `parsed` returns only selects the issuer and the key.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

TOKEN_BYTES_MAX = 8 * 1024
SUBJECT_MAX = 256
ROLES_MAX, ROLE_MAX = 64, 128
KID_MAX = 256
_TIME_MAX_S = 2**40
_FORM = re.compile(r"([A-Za-z0-9_-]{1,8192})\.([A-Za-z0-9_-]{1,8192})\.([A-Za-z0-9_-]{0,8192})", re.ASCII)
_SAFE = "@:|+=,-._~"
"""Characters of a subject that stay as they are, besides letters and digits. `/`, `%` and `*` do not."""


class BadToken(Exception):
    """A token that is refused. The message names the claim, and contains nothing of the token."""


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A parsed token; nothing of it is verified."""

    algorithm: str
    kid: str | None
    issuer: str
    claims: dict[str, Any]


def parsed(text: str) -> ParsedToken | None:
    """Return a token's parts, or None if the text is no token at all. Raises `BadToken` for a malformed one."""
    found = _FORM.fullmatch(text) if len(text) <= TOKEN_BYTES_MAX else None
    header = None if found is None else _object(found[1])
    if found is None or header is None:
        return None
    claims = _object(found[2])
    if claims is None:
        raise BadToken("its claims are no JSON object, or name one twice")
    algorithm, kid, issuer = header.get("alg"), header.get("kid"), claims.get("iss")
    if not isinstance(algorithm, str):
        raise BadToken("alg: must be a string")
    if "kid" in header and not (isinstance(kid, str) and 0 < len(kid) <= KID_MAX):
        raise BadToken(f"kid: must be a string of 1 to {KID_MAX} characters")
    if "crit" in header or "b64" in header:
        raise BadToken("crit: extensions are not supported")
    if not isinstance(issuer, str):
        raise BadToken("iss: must be a string")
    return ParsedToken(algorithm, kid, issuer, claims)


def check_audience(claims: dict[str, Any], audience: str) -> None:
    given = claims.get("aud")
    listed = [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed) or audience not in listed:
        raise BadToken("aud: the token is for another audience")


def expiry_us(claims: dict[str, Any], now_us: int, skew_s: int) -> int:
    """Return until when a token is accepted: `exp` and the tolerance. Raises `BadToken` outside `nbf` and `exp`."""
    expires_us = _time_us(claims, "exp") + skew_s * 1_000_000
    if expires_us <= now_us:
        raise BadToken("exp: the token has expired")
    if "nbf" in claims and _time_us(claims, "nbf") - skew_s * 1_000_000 > now_us:
        raise BadToken("nbf: the token is not valid yet")
    return expires_us


def subject_of(claims: dict[str, Any], claim: str) -> str:
    """Return the subject in the form that names use: `/`, `%`, `*`, spaces and non-ASCII are percent-encoded."""
    given = claims.get(claim)
    if not isinstance(given, str) or not 0 < len(given) <= SUBJECT_MAX or not given.isprintable():
        raise BadToken(f"{claim}: must be a string of 1 to {SUBJECT_MAX} printable characters")
    return quote(given, safe=_SAFE)


def roles_of(claims: dict[str, Any], claim: str | None) -> tuple[str, ...]:
    if claim is None or claim not in claims:
        return ()
    given = claims[claim]
    if not isinstance(given, list) or len(given) > ROLES_MAX:
        raise BadToken(f"{claim}: must be a list of at most {ROLES_MAX} role names")
    if not all(isinstance(one, str) and 0 < len(one) <= ROLE_MAX and one.isprintable() for one in given):
        raise BadToken(f"{claim}: a role name must have 1 to {ROLE_MAX} printable characters")
    return tuple(dict.fromkeys(given))


def _time_us(claims: dict[str, Any], claim: str) -> int:
    given = claims.get(claim)
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 <= given <= _TIME_MAX_S:  # type: ignore[operator] # NaN fails any comparison
        raise BadToken(f"{claim}: must be a number of seconds since 1970")
    return int(given * 1_000_000)  # type: ignore[operator]


def _object(part: str) -> dict[str, Any] | None:
    """Decode a part. A JSON object that names a field twice is none: parsers differ in which one they take."""
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is named twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
