"""Tokens: the right one is accepted, and every wrong one refused."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
from pathlib import Path
from typing import Any

import jwt
import pytest

from frazil.core.errors import InvalidSettings, TryLater, Unauthenticated
from frazil.core.principal import Principal
from frazil.core.settings.security import JwtSettings
from frazil.node.access.jwt.form import BadToken, expiry_us
from frazil.node.access.tokens import OWN_ISSUER, TokenVerifier
from frazil.testing.clock import FakeClock
from parts.issuers import (
    ISSUER,
    NOW_S,
    SECRET,
    claims,
    ec_key,
    hs256,
    jwks,
    part,
    public,
    public_jwk,
    public_pem,
    rsa_key,
    shared,
    signed,
)

RSA, OTHER_RSA, EC = rsa_key(), rsa_key(), ec_key()
HS = {"alg": "HS256", "typ": "JWT"}


def verifier(*issuers: JwtSettings, clock: FakeClock | None = None, **others: Any) -> TokenVerifier:
    return TokenVerifier(issuers, clock or FakeClock(), **others)


def verified(by: TokenVerifier, token: str) -> Principal | None:
    return asyncio.run(by.verify(token))


@pytest.fixture
def by_keys(tmp_path: Path) -> TokenVerifier:
    keys = jwks(public_jwk(RSA, "r1"), public_jwk(EC, "e1"))
    return verifier(public(tmp_path / "jwks.json", keys))


@pytest.fixture
def by_secret(tmp_path: Path) -> TokenVerifier:
    return verifier(shared(tmp_path, roles_claim="roles"))


# --- right ones


def test_a_token_of_each_algorithm_is_accepted(by_keys: TokenVerifier, by_secret: TokenVerifier) -> None:
    for by, token in (
        (by_keys, signed(RSA, "r1")),
        (by_keys, signed(EC, "e1", "ES256")),
        (by_secret, signed(SECRET, None, "HS256")),
        (by_secret, signed(SECRET, "any", "HS256")),
    ):
        found = verified(by, token)
        assert found is not None
        assert (found.name, found.roles, found.expires_us) == ("jwt:alice", (), (NOW_S + 600 + 30) * 1_000_000)


def test_a_token_without_kid_is_accepted_if_one_key_has_its_type(tmp_path: Path, by_keys: TokenVerifier) -> None:
    assert verified(by_keys, signed(RSA)) is not None
    two = verifier(public(tmp_path / "two", jwks(public_jwk(RSA, "a"), public_jwk(OTHER_RSA, "b"))))
    with pytest.raises(Unauthenticated):
        verified(two, signed(RSA))
    assert verified(two, signed(RSA, "a")) is not None
    with pytest.raises(Unauthenticated):
        verified(two, signed(RSA, "b"))


def test_roles_and_lists_of_audiences_are_taken(by_secret: TokenVerifier) -> None:
    token = signed(SECRET, None, "HS256", roles=["reader", "reader", "ops"], aud=["other", "frazil-test"])
    found = verified(by_secret, token)
    assert found is not None
    assert found.roles == ("reader", "ops")


def test_roles_are_ignored_without_a_setting_for_them(tmp_path: Path) -> None:
    found = verified(verifier(shared(tmp_path)), signed(SECRET, None, "HS256", roles=["admin"]))
    assert found is not None
    assert found.roles == ()


def test_what_is_no_token_is_left_to_others(by_keys: TokenVerifier) -> None:
    for text in (
        "",
        "abc",
        "a.b",
        "a.b.c",
        "..",
        "fz_1234.5678.90",
        "é.é.é",
        "a.b.c.d",
        part([1]) + "." + part({}) + ".",
    ):
        assert verified(by_keys, text) is None
    assert verified(by_keys, signed(RSA, "r1", iss="https://unknown.example")) is None
    assert verified(verifier(), signed(RSA, "r1")) is None


# --- attacks on algorithm and key


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_without_a_signature_is_refused(by_keys: TokenVerifier, algorithm: str) -> None:
    for signature in ("", part(b"x")):
        token = f"{part({'alg': algorithm, 'kid': 'r1'})}.{part(claims())}.{signature}"
        with pytest.raises(Unauthenticated):
            verified(by_keys, token)


def test_a_public_key_is_never_taken_for_a_shared_secret(by_keys: TokenVerifier) -> None:
    raw = json.dumps(public_jwk(RSA, "r1")).encode()
    for secret in (public_pem(RSA), public_pem(RSA).strip(), public_pem(EC), raw):
        for kid in ("r1", "e1"):
            with pytest.raises(Unauthenticated):
                verified(by_keys, hs256(HS | {"kid": kid}, claims(), secret))


def test_a_shared_secret_file_with_a_public_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"security\.jwt\.0\.secret_file"):
        verifier(shared(tmp_path, public_pem(RSA).decode()))


def test_a_key_of_another_type_or_algorithm_is_refused(tmp_path: Path, by_keys: TokenVerifier) -> None:
    with pytest.raises(Unauthenticated):
        verified(by_keys, signed(RSA, "e1"))
    with pytest.raises(Unauthenticated):
        verified(by_keys, signed(RSA, "r1", "RS512"))
    with pytest.raises(Unauthenticated):
        verified(by_keys, signed(RSA, "r1", "PS256"))
    only_ec = public(tmp_path / "ec", jwks(public_jwk(RSA, "r1"), public_jwk(EC, "e1")), algorithms=("ES256",))
    with pytest.raises(Unauthenticated):
        verified(verifier(only_ec), signed(RSA, "r1"))


@pytest.mark.parametrize(
    "kid", ["../../etc/passwd", "/dev/null", "r1\0", "' OR 1=1", "", "x" * 300, 7, None, ["r1"], {}]
)
def test_kid_selects_a_key_of_the_set_and_nothing_else(by_keys: TokenVerifier, kid: Any) -> None:
    token = f"{part({'alg': 'RS256', 'kid': kid})}.{signed(RSA, 'r1').split('.', 1)[1]}"
    with pytest.raises(Unauthenticated):
        verified(by_keys, token)


def test_keys_in_the_header_of_a_token_are_ignored(by_keys: TokenVerifier) -> None:

    for extra in (
        {"jwk": public_jwk(OTHER_RSA, "r1")},
        {"jku": "https://evil.example/jwks"},
        {"x5u": "https://evil.example"},
    ):
        with pytest.raises(Unauthenticated):
            verified(by_keys, jwt.encode(claims(), OTHER_RSA, "RS256", headers={"kid": "r1", **extra}))


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"b64": False}, {"crit": ["b64"], "b64": False}])
def test_extensions_that_change_the_meaning_are_refused(by_secret: TokenVerifier, extra: dict[str, Any]) -> None:
    with pytest.raises(Unauthenticated):
        verified(by_secret, hs256(HS | extra, claims(), SECRET.encode()))


def test_a_changed_token_is_refused(by_keys: TokenVerifier) -> None:
    header, _, signature = signed(RSA, "r1").split(".")
    with pytest.raises(Unauthenticated):
        verified(by_keys, f"{header}.{part(claims(sub='root'))}.{signature}")
    with pytest.raises(Unauthenticated):
        verified(by_keys, f"{header}.{part(claims())}.")


# --- attacks on claims

BAD_CLAIMS: list[dict[str, Any]] = [
    {"exp": None},
    {"exp": str(NOW_S + 600)},
    {"exp": True},
    {"exp": -1},
    {"exp": 0},
    {"exp": 10**30},
    {"exp": [NOW_S + 600]},
    {"exp": NOW_S - 31},
    {"nbf": NOW_S + 31},
    {"nbf": "0"},
    {"nbf": True},
    {"nbf": None, "aud": None},
    {"aud": "another"},
    {"aud": ["another"]},
    {"aud": []},
    {"aud": ["frazil-test", 7]},
    {"aud": {"frazil-test": 1}},
    {"aud": "frazil-test "},
    {"sub": None},
    {"sub": ""},
    {"sub": 7},
    {"sub": ["alice"]},
    {"sub": "x" * 257},
    {"sub": "a\nb"},
    {"sub": "a\x00b"},
    {"roles": "admin"},
    {"roles": [7]},
    {"roles": ["x" * 129]},
    {"roles": [""]},
    {"roles": ["r"] * 65},
    {"roles": {"admin": 1}},
]


@pytest.mark.parametrize("changed", BAD_CLAIMS, ids=str)
def test_a_wrong_claim_is_refused(by_secret: TokenVerifier, changed: dict[str, Any]) -> None:
    payload = {name: value for name, value in (claims() | changed).items() if value is not None}
    with pytest.raises(Unauthenticated):
        verified(by_secret, hs256(HS, payload, SECRET.encode()))


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "1e400", "9" * 5000])
def test_numbers_that_are_none_are_refused(by_secret: TokenVerifier, number: str) -> None:
    payload = json.dumps(claims(exp=None))[:-1] + f', "exp": {number}}}'
    with pytest.raises(Unauthenticated):
        verified(by_secret, hs256(HS, payload.encode(), SECRET.encode()))


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "number", [10**400, 2**1024, math.inf, math.nan, 1.7e308], ids=["10**400", "2**1024", "inf", "nan", "1.7e308"]
)
def test_a_time_that_no_clock_shows_is_refused(claim: str, sign: int, number: float) -> None:
    with pytest.raises(BadToken, match=f"{claim}: must be a number of seconds"):
        expiry_us({"exp": NOW_S, claim: sign * number}, 0, 0)


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["huge", "huge negative"])
def test_a_signed_token_with_such_a_time_is_refused(by_secret: TokenVerifier, claim: str, number: int) -> None:
    with pytest.raises(Unauthenticated):
        verified(by_secret, hs256(HS, claims() | {claim: number}, SECRET.encode()))


def test_a_fraction_of_a_second_is_accepted(by_secret: TokenVerifier) -> None:
    assert verified(by_secret, signed(SECRET, None, "HS256", exp=NOW_S + 1.5)) is not None


def test_a_claim_that_is_named_twice_is_refused(by_secret: TokenVerifier) -> None:
    twice = json.dumps(claims())[:-1] + ', "sub": "root"}'
    with pytest.raises(Unauthenticated):
        verified(by_secret, hs256(HS, twice.encode(), SECRET.encode()))
    header = b'{"alg":"none","alg":"HS256"}'
    assert verified(by_secret, hs256(header, claims(), SECRET.encode())) is None


def test_deep_and_broken_json_is_refused(by_secret: TokenVerifier) -> None:
    for payload in (b"[" * 5_000, b'{"a":' * 1_000, b"\xff\xfe", b"", b"null", b"7", b'{"iss":7}'):
        with pytest.raises(Unauthenticated):
            verified(by_secret, hs256(HS, payload or b" ", SECRET.encode()))


@pytest.mark.parametrize("size", [8 * 1024 + 1, 1024 * 1024])
def test_a_huge_token_is_refused_before_it_is_parsed(by_secret: TokenVerifier, size: int) -> None:
    token = hs256(HS, claims(pad="x" * size), SECRET.encode())
    with pytest.raises(Unauthenticated):
        verified(by_secret, token)
    assert by_secret.cached(token) is None


# --- several issuers


def two_issuers(folder: Path, second: str = "https://issuer.example/b") -> TokenVerifier:
    first = public(folder / "first.json", jwks(public_jwk(RSA, "k")))
    return verifier(first, public(folder / "second.json", jwks(public_jwk(OTHER_RSA, "k")), issuer=second))


def test_one_issuer_cannot_sign_for_another(tmp_path: Path) -> None:
    by = two_issuers(tmp_path)
    with pytest.raises(Unauthenticated):
        verified(by, signed(OTHER_RSA, "k"))
    with pytest.raises(Unauthenticated):
        verified(by, signed(RSA, "k", iss="https://issuer.example/b"))


def test_no_issuer_can_give_a_name_of_another(tmp_path: Path) -> None:
    by = two_issuers(tmp_path)
    first = verified(by, signed(RSA, "k", sub="b/alice"))
    second = verified(by, signed(OTHER_RSA, "k", iss="https://issuer.example/b", sub="alice"))
    assert first is not None
    assert second is not None
    assert first.name == "jwt:https://issuer.example/b%2Falice"
    assert second.name == "jwt:https://issuer.example/b/alice"


def test_a_subject_cannot_look_like_an_issuers_name_or_a_pattern(by_secret: TokenVerifier) -> None:
    for subject, name in {
        "https://issuer.example/alice": "jwt:https:%2F%2Fissuer.example%2Falice",
        "a%2Fb": "jwt:a%252Fb",
        "*": "jwt:%2A",
        "auth0|77": "jwt:auth0|77",
        "a b": "jwt:a%20b",
        "zoë@x.org": "jwt:zo%C3%AB@x.org",
    }.items():
        found = verified(by_secret, signed(SECRET, None, "HS256", sub=subject))
        assert found is not None
        assert found.name == name


def test_an_issuer_is_given_once_and_is_not_our_own(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"security\.jwt\.1\.issuer"):
        verifier(shared(tmp_path), shared(tmp_path))
    with pytest.raises(InvalidSettings, match=r"security\.jwt\.0\.issuer"):
        verifier(shared(tmp_path, issuer=OWN_ISSUER))


# --- time and cache


def test_the_tolerance_counts_at_both_ends_and_the_clock_is_ours(tmp_path: Path) -> None:
    clock = FakeClock()
    by = verifier(shared(tmp_path, clock_skew_s=10), clock=clock)
    token = signed(SECRET, None, "HS256", exp=NOW_S + 60, nbf=NOW_S + 9)
    assert verified(by, token) is not None
    clock.advance(69_999_999)
    assert by.cached(token) is not None
    assert verified(by, token) is not None
    clock.advance(1)
    assert by.cached(token) is None
    with pytest.raises(Unauthenticated, match="expired"):
        verified(by, token)


def test_a_verified_token_is_cached_and_a_refused_one_is_not(by_secret: TokenVerifier) -> None:
    token, wrong = signed(SECRET, None, "HS256"), signed("x" * 40, None, "HS256")
    assert by_secret.cached(token) is None
    found = verified(by_secret, token)
    assert by_secret.cached(token) == found
    with pytest.raises(Unauthenticated):
        verified(by_secret, wrong)
    assert by_secret.cached(wrong) is None


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    by = verifier(shared(tmp_path), cached_max=3)
    tokens = [signed(SECRET, None, "HS256", sub=f"s{number}") for number in range(5)]
    for token in tokens:
        verified(by, token)
    assert [by.cached(token) is not None for token in tokens] == [False, False, True, True, True]


def test_tokens_of_a_removed_key_are_refused_also_cached_ones(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    by = verifier(public(path, jwks(public_jwk(RSA, "old"), public_jwk(EC, "e"))))
    token, kept = signed(RSA, "old"), signed(EC, "e", "ES256", sub="bob")
    who, other = verified(by, token), verified(by, kept)
    assert who is not None
    assert other is not None
    path.write_bytes(jwks(public_jwk(OTHER_RSA, "new"), public_jwk(EC, "e")))
    by.sources[0].poll()
    assert by.cached(token) is None
    assert not by.is_valid(who)
    with pytest.raises(Unauthenticated):
        verified(by, token)
    assert by.cached(kept) == other
    assert by.is_valid(other)
    assert verified(by, signed(OTHER_RSA, "new")) is not None


def test_a_new_key_under_an_old_kid_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    by = verifier(public(path, jwks(public_jwk(RSA, "k"))))
    token = signed(RSA, "k")
    verified(by, token)
    path.write_bytes(jwks(public_jwk(OTHER_RSA, "k")))
    by.sources[0].poll()
    assert by.cached(token) is None
    with pytest.raises(Unauthenticated):
        verified(by, token)


# --- floods


def test_more_tokens_than_may_wait_are_told_to_try_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by = verifier(shared(tmp_path), waiting_max=2)
    held, check = threading.Event(), by.check
    monkeypatch.setattr(by, "check", lambda secret: held.wait(10) and check(secret))
    token = signed(SECRET, None, "HS256")

    async def flood() -> list[Any]:
        waiting = [asyncio.create_task(by.verify(token)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TryLater) as refused:
            await by.verify(token)
        assert refused.value.retry_after_ms > 0
        held.set()
        return await asyncio.gather(*waiting)

    assert [one.name for one in asyncio.run(flood())] == ["jwt:alice"] * 2
    assert verified(by, token) is not None


def test_refused_tokens_leave_one_line_for_each_reason_and_no_secret(
    by_secret: TokenVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [signed("x" * 40, None, "HS256", sub=f"s{number}") for number in range(50)]
    with caplog.at_level(logging.DEBUG):
        for token in wrong:
            with pytest.raises(Unauthenticated) as refused:
                verified(by_secret, token)
            assert token not in str(refused.value)
    lines = [record.getMessage() for record in caplog.records if record.name == "frazil.access"]
    assert lines == [f"a token of the issuer {ISSUER!r} is refused: its signature is wrong"]
    assert not any(token.rsplit(".", 1)[1] in text for token in wrong for text in [caplog.text])
