"""The gate while security is on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import frazil
from frazil.core import access
from frazil.core.access import SERVER, Action, Right
from frazil.core.errors import MetadataUnavailable
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.meta.sqlite import SqliteStore
from frazil.node.access import guard
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.gate import Credentials
from frazil.node.access.grants import BindingAdmin, KeyAdmin, RoleAdmin
from frazil.node.access.guard import SecureGate
from frazil.node.access.key_verifier import KeyVerifier
from frazil.testing import FakeClock

ORDERS, OTHERS = access.topic("/shop/orders"), access.topic("/other/orders")


class Recorded:
    """An audit log and quotas that keep what they are told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, bool, str]] = []
        self.counted: list[tuple[str, int]] = []

    def wants(self, action: str, allowed: bool) -> bool:
        return not allowed or action not in ("read", "produce", "consume", "describe")

    def record(
        self, who: Principal, action: str, resource: str, allowed: bool, peer: str = "", reason: str = ""
    ) -> None:
        self.lines.append((who.name, action, resource, allowed, peer))

    def request(self, who: Principal) -> None:
        self.counted.append((who.name, 1))

    def transfer(self, who: Principal, size_bytes: int) -> None:
        self.counted.append((who.name, size_bytes))

    def stream(self, who: Principal) -> AbstractContextManager[None]:
        self.counted.append((who.name, 0))
        return nullcontext()


class House:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = SqliteStore(folder / "meta.db")
        self.directory = AccessDirectory(self.store)
        self.keys = KeyAdmin(self.directory, self.clock)
        self.bindings, self.roles = BindingAdmin(self.directory), RoleAdmin(self.directory)
        self.verifier = KeyVerifier(self.directory, self.clock)
        self.audit = Recorded()
        self.gate = SecureGate(
            self.directory,
            [self.verifier],
            self.clock,
            is_local="frl_mine".__eq__,
            audit=self.audit,
            quotas=self.audit,
        )

    def key(self, role: str | None = None, scope: str = "*", lifetime_ms: int | None = None) -> tuple[str, str]:
        record, key = self.keys.create("alice", lifetime_ms=lifetime_ms)
        if role is not None:
            self.bindings.add(record.principal, role, scope)
        return record.id, key

    def who(self, authorization: str | None = None, certificate: str | None = None) -> Principal:
        return asyncio.run(self.gate.identify(Credentials(authorization, certificate, "10.0.0.1:5")))

    def close(self) -> None:
        self.verifier.close()
        self.directory.close()
        self.store.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.close()


def test_a_key_identifies_its_caller_whatever_the_case_of_the_scheme(house: House) -> None:
    key_id, key = house.key()
    assert house.gate.known(Credentials(f"Bearer {key}")) is None
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert house.who(f"{scheme} {key}").name == f"key:{key_id}"
    assert house.gate.known(Credentials(f"Bearer {key}")) is not None


def test_a_certificate_that_expired_on_an_open_connection_is_refused(house: House) -> None:
    house.bindings.add("cert:alice", "admin")
    given = Credentials(None, "alice", "10.0.0.1:5", house.clock.now_us() + 1_000)
    who = asyncio.run(house.gate.identify(given))
    house.gate.check(who, Action.READ, ORDERS)
    house.clock.advance(1_000)
    assert house.gate.known(given) is None
    with pytest.raises(frazil.Unauthenticated):
        asyncio.run(house.gate.identify(given))
    with pytest.raises(frazil.Unauthenticated):
        house.gate.check(who, Action.READ, ORDERS)
    assert not house.gate.allows(who, Action.READ, ORDERS), "nor in a stream that is open"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "frz_a", "Bearer x", "Bearer é", "Bearer " + "a" * 2**20, "Bearer a\0b"],
)
def test_a_wrong_header_is_refused_even_with_a_good_certificate(house: House, header: str) -> None:
    house.bindings.add("cert:alice", "admin")
    with pytest.raises(frazil.Unauthenticated):
        house.who(header, "alice")
    assert house.audit.lines == [("anonymous", "identify", "", False, "10.0.0.1:5")]


def test_without_a_header_the_certificate_identifies(house: House) -> None:
    assert house.who(None, "CN=alice").name == "cert:CN=alice"
    for name in (None, "", "a\nb", "a" * 300):
        with pytest.raises(frazil.Unauthenticated):
            house.who(None, name)


def test_the_header_decides_if_there_is_a_certificate_too(house: House) -> None:
    key_id, key = house.key()
    assert house.who(f"Bearer {key}", "alice").name == f"key:{key_id}"


def test_the_local_token_may_do_everything(house: House) -> None:
    assert house.who("Bearer frl_mine") is LOCAL
    house.gate.check(LOCAL, Action.GRANT, SERVER, "peer")
    assert house.audit.lines == [("local", "grant", "server /", True, "peer")]
    with pytest.raises(frazil.Unauthenticated):
        house.who("Bearer frl_other")


def test_a_caller_that_is_named_like_this_process_is_not_this_process(house: House) -> None:
    for who in (Principal("local"), ANONYMOUS, Principal("key:local"), Principal("jwt:local")):
        assert not house.gate.allows(who, Action.DESCRIBE, ORDERS)


def test_a_caller_may_what_its_roles_allow_and_nothing_else(house: House) -> None:
    key_id, key = house.key("producer", "/shop/*")
    who = house.who(f"Bearer {key}")
    house.gate.check(who, Action.PRODUCE, ORDERS)
    assert not house.gate.allows(who, Action.PRODUCE, OTHERS)
    with pytest.raises(frazil.PermissionDenied) as denied:
        house.gate.check(who, Action.PRODUCE, OTHERS, "peer")
    assert (denied.value.principal, denied.value.action) == (f"key:{key_id}", "produce")
    assert house.audit.lines == [(f"key:{key_id}", "produce", "topic /other/orders", False, "peer")]


def test_all_rights_are_checked_before_any_is_recorded(house: House) -> None:
    _, key = house.key("admin", "/shop/*")
    who = house.who(f"Bearer {key}")
    with pytest.raises(frazil.PermissionDenied):
        house.gate.check_all(who, [Right(Action.DELETE, ORDERS), Right(Action.DELETE, OTHERS)])
    assert [line[3] for line in house.audit.lines] == [False]
    house.gate.check_all(who, iter([Right(Action.DELETE, ORDERS), Right(Action.READ, ORDERS)]))
    assert [line[1:4] for line in house.audit.lines[1:]] == [("delete", "topic /shop/orders", True)]


def test_a_revoked_key_fails_the_next_check(house: House) -> None:
    key_id, key = house.key("reader")
    who = house.who(f"Bearer {key}")
    house.gate.check(who, Action.READ, ORDERS)
    house.keys.revoke(key_id)
    with pytest.raises(frazil.Unauthenticated, match="revoked"):
        house.gate.check(who, Action.READ, ORDERS)
    assert not house.gate.allows(who, Action.READ, ORDERS)
    with pytest.raises(frazil.Unauthenticated):
        house.who(f"Bearer {key}")


def test_expired_credentials_fail_the_next_check(house: House) -> None:
    _, key = house.key("reader", lifetime_ms=1_000)
    who, token = house.who(f"Bearer {key}"), Principal("jwt:a", ("reader",), house.clock.now_us() + 1_000_000)
    for caller in (who, token):
        house.gate.check(caller, Action.READ, ORDERS)
    house.clock.advance(1_000_000)
    for caller in (who, token):
        with pytest.raises(frazil.Unauthenticated, match="expired"):
            house.gate.check(caller, Action.READ, ORDERS)
        assert not house.gate.allows(caller, Action.READ, ORDERS)
    assert house.gate.known(Credentials(f"Bearer {key}")) is None


def test_a_decision_is_dropped_when_roles_or_bindings_change(house: House) -> None:
    who = Principal("jwt:alice")
    assert not house.gate.allows(who, Action.READ, ORDERS)
    house.bindings.add("jwt:alice", "reader")
    assert house.gate.allows(who, Action.READ, ORDERS)
    house.roles.put("closed", [{"effect": "deny", "actions": ["*"], "kind": "*", "pattern": "*"}])
    house.bindings.add("jwt:alice", "closed", "/shop/*")
    assert not house.gate.allows(who, Action.READ, ORDERS)
    assert house.gate.allows(who, Action.READ, OTHERS)
    house.bindings.remove("jwt:alice", "closed", "/shop/*")
    assert house.gate.allows(who, Action.READ, ORDERS)
    assert not house.gate.allows(Principal("jwt:alice2"), Action.READ, ORDERS)


def test_callers_of_one_name_with_other_roles_are_told_apart(house: House) -> None:
    assert house.gate.allows(Principal("jwt:a", ("reader",)), Action.READ, ORDERS)
    assert not house.gate.allows(Principal("jwt:a"), Action.READ, ORDERS)
    assert not house.gate.allows(Principal("jwt:a", ("producer",)), Action.READ, ORDERS)


def test_remembered_decisions_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "DECISIONS_MAX", 10)
    who = Principal("jwt:a", ("reader",))
    for number in range(100):
        assert house.gate.allows(who, Action.READ, access.topic(f"/shop/t{number}"))
        assert len(house.gate._decisions.by_right) <= 10


def test_no_decision_outlives_the_change_that_revokes_it(house: House) -> None:
    """Threads check all the time, while a binding comes and goes: after each removal none passes any more."""
    who, ended = Principal("jwt:alice"), threading.Event()

    def check() -> None:
        while not ended.is_set():
            house.gate.allows(who, Action.READ, ORDERS)

    threads = [threading.Thread(target=check) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            house.bindings.add("jwt:alice", "reader")
            assert house.gate.allows(who, Action.READ, ORDERS)
            house.bindings.remove("jwt:alice", "reader")
            assert not any(house.gate.allows(who, Action.READ, ORDERS) for _ in range(20))
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_while_the_store_is_away_the_last_known_state_applies(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    _, key = house.key("reader")
    who = house.who(f"Bearer {key}")

    noticed = threading.Event()

    def away(*_: object) -> None:
        noticed.set()
        raise MetadataUnavailable("http://127.0.0.1:1", "it is away")

    watch = house.directory._follower._watch
    assert watch is not None
    with monkeypatch.context() as patched:
        patched.setattr(house.store, "snapshot", away)
        patched.setattr(house.store, "watch", away)
        patched.setattr(watch, "next", away)
        ends = time.monotonic() + 10
        while not noticed.is_set():  # the watch may still wait in its last call
            house.gate.check(who, Action.READ, ORDERS)
            assert time.monotonic() < ends
        assert house.who(f"Bearer {key}") == who
        other = SqliteStore(house.store._path)
        BindingAdmin(AccessDirectory(other, follows=False)).remove(who.name, "reader")
        other.close()
        assert house.gate.allows(who, Action.READ, ORDERS)
    ends = time.monotonic() + 10
    while house.gate.allows(who, Action.READ, ORDERS):
        assert time.monotonic() < ends, "what was missed is seen once the store is back"


def test_quotas_count_everyone_but_this_process(house: House) -> None:
    who = Principal("jwt:a")
    for caller in (who, LOCAL):
        house.gate.request(caller)
        house.gate.transfer(caller, 7)
        with house.gate.stream(caller):
            pass
    assert house.audit.counted == [("jwt:a", 1), ("jwt:a", 7), ("jwt:a", 0)]


def test_long_names_are_not_remembered(house: House) -> None:
    """A caller without rights may ask for names of megabytes: they must not stay in memory."""
    who, long = Principal("jwt:a", ("reader",)), "/shop/" + "x" * 2_000
    known = access._topic.cache_info().currsize
    for resource in (access.topic(long), access.subscription(long, "s"), access.schema(long)):
        house.gate.allows(who, Action.DESCRIBE, resource)
    assert access.topic(long).name == long
    assert access._topic.cache_info().currsize == known
    assert house.gate._decisions.by_right == {}
    assert not house.gate.allows(who, Action.PRODUCE, access.topic(long))
    assert house.gate.allows(who, Action.READ, access.topic(long))
