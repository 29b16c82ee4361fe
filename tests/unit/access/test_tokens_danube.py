"""Tokens that Danube clients get for an API key: as good as the key, and never longer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from frazil.core.errors import FrazilError, Unauthenticated
from frazil.meta.sqlite import SqliteStore
from frazil.node.access.danube_tokens import GRACE_S, SECRET_KEY, DanubeTokens, danube_secret
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.grants import KeyAdmin
from frazil.node.access.key_verifier import KeyVerifier
from frazil.testing.clock import FakeClock
from parts.issuers import hs256, part

LIFETIME_S = 3_600
SECOND_US = 1_000_000


class World:
    """Keys in a real store, and the tokens that are made for them."""

    def __init__(self, store: SqliteStore) -> None:
        self.clock = FakeClock()
        self.directory = AccessDirectory(store, follows=False)
        self.keys = KeyAdmin(self.directory, self.clock)
        self.verifier = KeyVerifier(self.directory, self.clock)
        self.secret = danube_secret(store)
        self.tokens = DanubeTokens(self.secret, self.verifier, self.directory, self.clock, LIFETIME_S)

    def issue(self, key: str) -> str:
        return asyncio.run(self.tokens.issue(key))

    def verify(self, token: str) -> Any:
        return asyncio.run(self.tokens.verify(token))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "meta.db")
    yield opened
    opened.close()


@pytest.fixture
def world(store: SqliteStore) -> Iterator[World]:
    made = World(store)
    yield made
    made.verifier.close()
    made.directory.close()


def test_a_key_becomes_a_token_of_its_principal(world: World) -> None:
    record, key = world.keys.create("tests")
    token = world.issue(key)
    assert key not in token
    assert world.tokens.cached(token) is None
    who = world.verify(token)
    assert who.name == record.principal
    assert world.tokens.cached(token) == who
    assert world.tokens.is_valid(who)
    assert who.expires_us == world.clock.now_us() + (LIFETIME_S + GRACE_S) * SECOND_US


def test_a_token_ends_after_its_lifetime(world: World) -> None:
    token = world.issue(world.keys.create("tests")[1])
    world.verify(token)
    world.clock.advance((LIFETIME_S + GRACE_S) * SECOND_US - 1)
    assert world.tokens.cached(token) is not None
    world.clock.advance(1)
    assert world.tokens.cached(token) is None
    with pytest.raises(Unauthenticated):
        world.verify(token)


def test_a_revoked_key_ends_its_tokens_at_once(world: World) -> None:
    record, key = world.keys.create("tests")
    token = world.issue(key)
    who = world.verify(token)
    world.keys.revoke(record.id)
    assert world.tokens.cached(token) is None
    assert not world.tokens.is_valid(who)
    with pytest.raises(Unauthenticated):
        world.verify(token)
    with pytest.raises(Unauthenticated):
        world.issue(key)


def test_a_rotated_key_ends_the_tokens_of_its_old_secret(world: World) -> None:
    record, key = world.keys.create("tests")
    token = world.issue(key)
    world.verify(token)
    _, newer = world.keys.rotate(record.id)
    assert world.tokens.cached(token) is None
    with pytest.raises(Unauthenticated):
        world.verify(token)
    assert world.verify(world.issue(newer)).name == record.principal


def test_a_token_does_not_outlive_its_key(world: World) -> None:
    _, key = world.keys.create("tests", lifetime_ms=60_000)
    token = world.issue(key)
    world.verify(token)
    world.clock.advance(60 * SECOND_US)
    assert world.tokens.cached(token) is None
    with pytest.raises(Unauthenticated):
        world.verify(token)


@pytest.mark.parametrize("wrong", ["", "frz_", "frz_aaaaaaaaaaaa_" + "a" * 52, "x" * 10_000, "a.b.c", "\ud800"])
def test_what_is_no_key_gets_no_token(world: World, wrong: str) -> None:
    with pytest.raises(Unauthenticated):
        world.issue(wrong)


def test_a_token_is_no_key_for_another_token(world: World) -> None:
    token = world.issue(world.keys.create("tests")[1])
    with pytest.raises(Unauthenticated):
        world.issue(token)


def test_forged_tokens_are_refused(world: World) -> None:
    record, key = world.keys.create("tests")
    right = jwt.decode(world.issue(key), options={"verify_signature": False})
    header = {"alg": "HS256"}
    forged = [
        hs256(header, right, b"x" * 32),
        f"{part({'alg': 'none'})}.{part(right)}.",
        hs256({"alg": "HS512"}, right, world.secret),
        *(
            hs256(header, right | changed, world.secret)
            for changed in (
                {"sub": "jwt:alice"},
                {"sub": "local"},
                {"sub": "key:aaaaaaaaaaaa"},
                {"sub": 7},
                {"sub": record.principal, "key": "0" * 16},
                {"key": None},
                {"aud": "frazil"},
                {"exp": 1},
                {"exp": "9999999999"},
            )
        ),
    ]
    for token in forged:
        with pytest.raises(Unauthenticated):
            world.verify(token)
        assert world.tokens.cached(token) is None
    assert world.verify(hs256(header, right, world.secret)) is not None


def test_tokens_of_others_are_left_to_others(world: World) -> None:
    for token in ("", "frz_x", "a.b.c", hs256({"alg": "HS256"}, {"iss": "https://other"}, world.secret), "x" * 100_000):
        assert world.verify(token) is None


def test_the_secret_is_made_once_for_all_servers(store: SqliteStore, tmp_path: Path) -> None:
    first = danube_secret(store)
    assert len(first) == 32
    assert danube_secret(store) == first
    other = SqliteStore(tmp_path / "other.db")
    assert danube_secret(other) != first
    other.close()


def test_an_unreadable_secret_is_refused_without_showing_it(store: SqliteStore) -> None:
    for value in (b"{", b"[]", b'{"secret":"c2hvcnQ="}', json.dumps({"secret": "!planted!"}).encode()):
        store.put_all({SECRET_KEY: value})
        with pytest.raises(FrazilError, match="danube_secret") as refused:
            danube_secret(store)
        assert "planted" not in str(refused.value)
