"""Admission of gRPC calls: the order of its steps, and what a stream's rights do while it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from frazil.core.access import Action, Resource, Right, topic
from frazil.core.errors import InvalidInput, PermissionDenied, QuotaExceeded, Unauthenticated
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors import admission
from frazil.doors.admission import (
    BY_HANDLER,
    IDENTIFIED,
    PUBLIC,
    Needs,
    Rights,
    StreamRights,
    admit,
    who,
)
from frazil.node.access.gate import HEADER_BYTES_MAX, Credentials, OpenGate

ALICE = Principal("key:alice")
READ = Right(Action.READ, topic("/shop/orders"))


class FakeGate(OpenGate):
    """Knows one key, and writes down what it is asked."""

    is_on = True

    def __init__(self, *allowed: Right) -> None:
        self.allowed = set(allowed)
        self.asked: list[str] = []
        self.cached = False
        self.left_bytes = 1_000
        self.open_streams = 0

    def known(self, given: Credentials) -> Principal | None:
        return ALICE if self.cached and given.authorization == "Bearer good" else None

    async def identify(self, given: Credentials) -> Principal:
        self.asked.append("identify")
        if given.authorization != "Bearer good":
            raise Unauthenticated
        return ALICE

    def request(self, who: Principal) -> None:
        self.asked.append("request")

    def allows(self, who: Principal, action: Action, resource: Resource) -> bool:
        return Right(action, resource) in self.allowed

    def check(self, who: Principal, action: Action, resource: Resource, peer: str = "") -> None:
        self.asked.append("check")
        if not self.allows(who, action, resource):
            raise PermissionDenied(who.name, action, resource.kind, resource.name)

    def check_all(self, who: Principal, rights: Iterable[Right], peer: str = "") -> None:
        for action, resource in rights:
            self.check(who, action, resource, peer)

    def transfer(self, who: Principal, size_bytes: int) -> None:
        if size_bytes > self.left_bytes:
            raise QuotaExceeded(who.name, "bytes_per_second", self.left_bytes, 1)
        self.left_bytes -= size_bytes

    @contextmanager
    def stream(self, who: Principal) -> Iterator[None]:
        self.open_streams += 1
        try:
            yield
        finally:
            self.open_streams -= 1


class FakeContext:
    def __init__(self, *headers: str) -> None:
        self._headers = headers

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "a test"), *(("authorization", one) for one in self._headers))

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def admitted(gate: FakeGate, needs: Rights | Needs, *headers: str, message: Any = None) -> Principal:
    async def work() -> Principal:
        await admit(gate, FakeContext(*headers), needs, message)
        return who()

    return asyncio.run(work())


def reads(_: Any) -> list[Right]:
    return [READ]


def test_a_caller_is_identified_then_counted_then_checked() -> None:
    gate = FakeGate(READ)
    assert admitted(gate, reads, "Bearer good") is ALICE
    assert gate.asked == ["identify", "request", "check"]


def test_a_caller_who_was_verified_lately_does_not_wait() -> None:
    gate = FakeGate(READ)
    gate.cached = True
    assert admitted(gate, reads, "Bearer good") is ALICE
    assert gate.asked == ["request", "check"]


@pytest.mark.parametrize("needs", [reads, IDENTIFIED, BY_HANDLER])
@pytest.mark.parametrize("headers", [(), ("Bearer bad",), ("Bearer good", "Bearer good")])
def test_nobody_passes_without_valid_credentials(needs: Rights | Needs, headers: tuple[str, ...]) -> None:
    gate = FakeGate(READ)
    with pytest.raises(Unauthenticated):
        admitted(gate, needs, *headers, message=InvalidInput("malformed"))
    assert "request" not in gate.asked


def test_a_header_that_is_too_large_is_refused_before_anything_else() -> None:
    gate = FakeGate(READ)
    with pytest.raises(Unauthenticated, match=f"more than {HEADER_BYTES_MAX} bytes"):
        admitted(gate, reads, "B" * (HEADER_BYTES_MAX + 1))
    assert gate.asked == []


def test_a_malformed_request_is_refused_once_the_caller_is_known() -> None:
    gate = FakeGate()
    with pytest.raises(InvalidInput, match="malformed"):
        admitted(gate, reads, "Bearer good", message=InvalidInput("malformed"))
    assert gate.asked == ["identify", "request"]


def test_a_right_that_is_missing_refuses_the_call() -> None:
    with pytest.raises(PermissionDenied):
        admitted(FakeGate(), reads, "Bearer good")


def test_a_public_call_is_answered_for_all_and_knows_who_has_valid_credentials() -> None:
    assert admitted(FakeGate(), PUBLIC) is ANONYMOUS
    assert admitted(FakeGate(), PUBLIC, "Bearer bad") is ANONYMOUS
    assert admitted(FakeGate(), PUBLIC, "B" * (HEADER_BYTES_MAX + 1)) is ANONYMOUS
    assert admitted(FakeGate(), PUBLIC, "Bearer good") is ALICE


# --- streams


def test_a_stream_is_counted_and_ends_once_its_right_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)

    async def work() -> None:
        gate, ended = FakeGate(READ), asyncio.Event()
        rights = StreamRights(gate, ALICE, "", [READ])

        async def streaming() -> None:
            with rights.open(ended.set):
                assert gate.open_streams == 1
                await asyncio.sleep(0.05)
                assert not ended.is_set()
                gate.allowed.clear()
                await asyncio.wait_for(ended.wait(), 10)

        with pytest.raises(PermissionDenied):
            await streaming()
        assert gate.open_streams == 0
        with rights.open(ended.set):
            pass

    asyncio.run(work())


def test_a_stream_that_does_not_end_with_its_right_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(admission, "CUT_SECONDS", 0.02)

    async def work() -> None:
        gate = FakeGate(READ)
        rights = StreamRights(gate, ALICE, "", [READ])

        async def blocked() -> None:
            with rights.open(lambda: None):
                gate.allowed.clear()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(blocked())
        with pytest.raises(PermissionDenied):
            await asyncio.wait_for(task, 10)
        assert task.cancelling() == 0
        assert gate.open_streams == 0

    asyncio.run(work())


def test_a_cancellation_by_another_is_not_taken_for_a_lost_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(admission, "CUT_SECONDS", 0.02)

    async def work() -> None:
        gate = FakeGate(READ)
        rights, lost = StreamRights(gate, ALICE, "", [READ]), asyncio.Event()

        async def blocked() -> None:
            with rights.open(lost.set):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.1)  # meanwhile the stream is cut too

        task = asyncio.ensure_future(blocked())
        await asyncio.sleep(0)
        gate.allowed.clear()
        await asyncio.wait_for(lost.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())


def test_what_is_still_allowed_is_not_recorded_again() -> None:
    gate = FakeGate(READ)
    rights = StreamRights(gate, ALICE, "", [READ])
    rights.check()
    assert gate.asked == []
    gate.allowed.clear()
    with pytest.raises(PermissionDenied):
        rights.check()


def test_received_rows_beyond_the_quota_are_refused_and_sent_ones_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        gate = FakeGate(READ)
        rights = StreamRights(gate, ALICE, "", [READ])
        rights.take(900)
        with pytest.raises(QuotaExceeded):
            rights.take(200)
        asyncio.get_running_loop().call_later(0.05, setattr, gate, "left_bytes", 500)
        await asyncio.wait_for(rights.give(200), 10)
        assert gate.left_bytes == 300
        monkeypatch.setattr(admission, "QUOTA_SECONDS_MAX", 0.02)
        with pytest.raises(QuotaExceeded):
            await rights.give(400)

    asyncio.run(work())


def test_a_stream_without_security_asks_nothing() -> None:
    async def work() -> None:
        def never() -> None:
            raise AssertionError("it must not end")

        rights = StreamRights(OpenGate(), ANONYMOUS, "", [READ])
        with rights.open(never):
            rights.take(10)
            await rights.give(10)

    asyncio.run(work())
