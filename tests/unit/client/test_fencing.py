"""Several clients of one producer's name, connections that are cut, answers that are lost: each caller is told the
truth about its own rows, and a name that was taken stays taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
import frazil.aio
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import FlightDoor, flight_door
from frazil.log.write import producers
from parts.cut_proxy import CutProxy, cut_proxy

TOPIC = "/default/orders"
TILL = "till 7"


@pytest.fixture
def proxy(door: FlightDoor) -> Iterator[CutProxy]:
    with cut_proxy(door.port) as proxy:
        yield proxy


class Call(threading.Thread):
    """One call in a thread of its own, and how it ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.answer: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._call()
        except BaseException as error:  # noqa: BLE001 - it is looked at by whoever asked
            self.error = error

    def outcome(self) -> Any:
        self.join(60)
        assert not self.is_alive(), "the call has not ended"
        return self.answer if self.error is None else type(self.error)


def stored(owner: frazil.Storage) -> list[bytes]:
    return [message.payload for message in owner.topic(TOPIC).read()]


def until(true: Callable[[], bool]) -> None:
    passed = threading.Event()
    for _ in range(6_000):
        if true():
            return
        passed.wait(0.01)
    raise AssertionError("it did not come true")


def lose(proxy: CutProxy, what: str, owner: frazil.Storage, topic: frazil.RemoteTopic, *payloads: str) -> Call:
    """A publish whose calls, or answers, go nowhere, until its client is cut off."""
    end = owner.topic(TOPIC).stats().end + len(payloads)
    proxy.swallow(what)
    call = Call(lambda: topic.publish_many(payloads))
    if what == "answers":
        until(lambda: owner.topic(TOPIC).stats().end == end and bool(proxy.swallowed))
    else:
        until(lambda: payloads[-1].encode() in proxy.swallowed)
    proxy.refuse()
    return call


@pytest.mark.parametrize("lost", ["calls", "answers"])
def test_a_batch_in_flight_while_another_takes_the_name_has_an_unknown_outcome(
    owner: frazil.Storage, door: FlightDoor, proxy: CutProxy, lost: str
) -> None:
    """Whether it was stored or not: the other's batch, of the same number and rows, is never taken for it."""
    with frazil.connect(proxy.address, producer=TILL, give_up_ms=60_000) as first:
        topic = first.topic(TOPIC)
        topic.publish("a0")
        call = lose(proxy, lost, owner, topic, "a1")
        with frazil.connect(door.address, producer=TILL) as second:
            second.topic(TOPIC).publish("b0")
            proxy.heal()
            assert call.outcome() is frazil.OutcomeUnknown
            second.topic(TOPIC).publish("b1")
        with pytest.raises(frazil.ProducerFenced):
            topic.publish("a2")
    assert stored(owner) == [b"a0", *([b"a1"] if lost == "answers" else []), b"b0", b"b1"]


@pytest.mark.parametrize("lost", ["calls", "answers"])
def test_a_client_that_nobody_fenced_is_known_again_and_its_batch_is_stored_once(
    owner: frazil.Storage, door: FlightDoor, proxy: CutProxy, lost: str
) -> None:
    with frazil.connect(proxy.address, producer=TILL, give_up_ms=60_000) as remote:
        topic = remote.topic(TOPIC)
        topic.publish("a0")
        before = owner.topic(TOPIC).producer_state(TILL)
        call = lose(proxy, lost, owner, topic, "a1", "a2")
        proxy.heal()
        assert call.outcome() == frazil.OffsetRange(1, 3)
        after = owner.topic(TOPIC).producer_state(TILL)
        assert before is not None
        assert after is not None
        assert (after.epoch, after.client) == (before.epoch, before.client), "it is the same client"
        assert topic.publish("a3") == 3
    assert stored(owner) == [b"a0", b"a1", b"a2", b"a3"]


def test_a_fenced_client_stays_fenced_until_its_user_opens_the_producer_again(tmp_path: Path) -> None:
    """Also when its connection is cut, and when the server is started again."""
    settings = FlightSettings(port=0)
    with contextlib.ExitStack() as clients:
        with frazil.open(tmp_path) as owner, flight_door(owner, settings) as door:
            port = door.port
            first = clients.enter_context(frazil.connect(door.address, producer=TILL, give_up_ms=20_000))
            second = clients.enter_context(frazil.connect(door.address, producer=TILL, give_up_ms=20_000))
            ours, theirs = first.topic(TOPIC), second.topic(TOPIC)
            ours.publish("a0")
            ours.open_producer()  # nobody has taken it: nothing changes
            assert [ours.publish("a1"), theirs.publish("b0")] == [1, 2]
            for _ in range(5):
                with pytest.raises(frazil.ProducerFenced):
                    ours.publish("a2")
        with frazil.open(tmp_path) as owner, flight_door(owner, FlightSettings(port=port)):
            for _ in range(3):
                with pytest.raises(frazil.ProducerFenced):
                    ours.publish("a3")
                theirs.publish("b1")
            ours.open_producer()
            assert ours.publish("a4") == 6
            for _ in range(3):
                with pytest.raises(frazil.ProducerFenced):
                    theirs.publish("b2")
                ours.publish("a5")
            assert stored(owner) == [b"a0", b"a1", b"b0", b"b1", b"b1", b"b1", b"a4", b"a5", b"a5", b"a5"]


def test_a_client_whose_first_answer_was_lost_does_not_take_the_name_from_one_that_came_later(
    owner: frazil.Storage, door: FlightDoor, proxy: CutProxy
) -> None:
    """It was opened, did not learn of it, and asks again when the name is another's."""
    with frazil.connect(proxy.address, producer=TILL, give_up_ms=60_000) as first:
        topic = first.topic(TOPIC)
        # the look at the name comes through; the answer to the open does not
        log = owner.topic(TOPIC).log
        opened, go_on = threading.Event(), threading.Event()
        open_producer = log.open_producer

        def opens(*asked: Any) -> Any:
            found = open_producer(*asked)
            if not opened.is_set():
                opened.set()
                assert go_on.wait(60)
            return found

        log.open_producer = opens  # type: ignore[method-assign]
        call = Call(lambda: topic.publish("a0"))
        assert opened.wait(60)
        proxy.refuse()
        go_on.set()
        with frazil.connect(door.address, producer=TILL) as second:
            assert second.topic(TOPIC).publish("b0") == 0
            proxy.heal()
            assert call.outcome() is frazil.ProducerFenced, "nothing was ever sent"
            assert second.topic(TOPIC).publish("b1") == 1
    assert stored(owner) == [b"b0", b"b1"]


def test_a_batch_in_flight_while_its_producer_is_forgotten_has_an_unknown_outcome_and_is_not_stored_twice(
    owner: frazil.Storage, proxy: CutProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    with frazil.connect(proxy.address, give_up_ms=60_000) as remote:
        topic = remote.topic(TOPIC)
        topic.publish("a0")
        call = lose(proxy, "answers", owner, topic, "a1")
        for other in range(5):
            owner.topic(TOPIC).open_producer(f"other {other}")
        assert owner.topic(TOPIC).producer_state(remote.producer) is None
        proxy.heal()
        assert call.outcome() is frazil.OutcomeUnknown
        assert topic.publish("a2") == 2, "it goes on as a new one"
    assert stored(owner) == [b"a0", b"a1", b"a2"]


def test_a_fenced_client_of_asyncio_is_told_and_may_open_the_producer_again(
    owner: frazil.Storage, door: FlightDoor
) -> None:
    async def main() -> None:
        async with (
            await frazil.aio.connect(door.address, producer=TILL) as first,
            await frazil.aio.connect(door.address, producer=TILL) as second,
        ):
            ours, theirs = await first.topic(TOPIC), await second.topic(TOPIC)
            assert [await ours.publish("a0"), await theirs.publish("b0")] == [0, 1]
            for _ in range(4):
                with pytest.raises(frazil.ProducerFenced):
                    await ours.publish("a1")
            await ours.open_producer()
            assert await ours.publish("a2") == 2
            with pytest.raises(frazil.ProducerFenced):
                await theirs.publish("b1")

    asyncio.run(main())
    assert stored(owner) == [b"a0", b"b0", b"a2"]


def test_a_client_of_an_older_version_is_refused_and_told_why(owner: frazil.Storage, door: FlightDoor) -> None:
    owner.topic(TOPIC)
    asked = {"topic": TOPIC, "log_id": None, "producer": TILL, "epochs": None}
    schema = pa.schema([pa.field("_payload", pa.binary(), nullable=False)])
    descriptor = pa.flight.FlightDescriptor.for_command(json.dumps(asked).encode())
    with pa.flight.connect(door.address) as client:
        writer, answers = client.do_put(descriptor, schema)
        with contextlib.suppress(pa.ArrowException):
            assert answers.read() is None
        with pytest.raises(pa.flight.FlightError, match="epochs"):
            writer.close()
    assert owner.topic(TOPIC).producer_state(TILL) is None
