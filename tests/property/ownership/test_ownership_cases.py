"""Single stories of the model, in which one moment matters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from owning_brokers import LEASE_MS, Broker, World
from virtual_time import VirtualLoop

from frazil.core.errors import Fenced, FrazilError, TopicUnavailable
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.meta.topic_records import TOPIC_RECORDS, TopicIdentity, topic_record_key

TOPIC, OTHER = TopicName("default", "orders"), TopicName("default", "other")


@contextlib.asynccontextmanager
async def cluster(world: World, *names: str) -> AsyncIterator[list[Broker]]:
    brokers = [Broker(world, name, {}, far=True) for name in names]
    for broker in brokers:
        await broker.start()
    await asyncio.sleep(LEASE_MS / 1_000 + 2)
    try:
        yield brokers
        assert not world.violations
    finally:
        for broker in brokers:
            if not broker.is_dead:
                await broker.kill()
            broker.meta.close()


def run(folder: Path, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        world = runner.run(_world(folder, loop))
        runner.run(story(world))


async def _world(folder: Path, loop: VirtualLoop) -> World:
    return World(folder, loop)


async def publish(brokers: list[Broker], milliseconds: int) -> None:
    """Publish to every broker that takes it, all the time."""
    for _ in range(milliseconds):
        for broker in brokers:
            with contextlib.suppress(FrazilError):
                broker.publish(TOPIC)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("ack", [None, "object"])
def test_an_owner_that_does_not_know_whether_it_gave_a_topic_away_does_not_serve_it(
    tmp_path: Path, ack: str | None
) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, ack)
            await publish([a, b], 20)
            assert b.ownership is not None
            a.meta.loses_owner_change = True
            move = asyncio.create_task(b.ownership.move(TOPIC))
            await publish([a, b], 2_000)
            await move
            assert not a.meta.loses_owner_change
            assert TOPIC in b.served()
            assert TOPIC not in a.served()
            acked, rows = world.acked[TOPIC], b.host.disk[TOPIC].rows
            assert len(acked) > 1_000
            assert [row for row in acked if row not in set(rows)] == []

    run(tmp_path, story)


def test_an_owner_whose_request_was_lost_serves_the_topic_again(tmp_path: Path) -> None:
    """For certain it has not changed: etcd could not be reached, and nothing was sent."""

    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, None)
            assert a.ownership is not None
            assert b.ownership is not None
            a.host.then = lambda: setattr(a.meta, "is_away", True)  # after the upload, before the change
            move = asyncio.create_task(b.ownership.move(TOPIC))
            await asyncio.sleep(1)
            assert a.meta.is_away
            assert TOPIC in a.served(), "etcd is away, and it owns the topic"
            a.publish(TOPIC)
            a.meta.is_away = False
            await move
            assert b.host.disk[TOPIC].rows == world.acked[TOPIC]

    run(tmp_path, story)


def test_a_broker_that_sleeps_while_it_opens_a_topic_never_serves_it_if_another_took_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as (a, b, c):
            await c.create(TOPIC, "object")
            assert b.ownership is not None
            a.host.then = a.gate.pause  # it has fenced the others off, and has not asked for its record again
            move = asyncio.create_task(b.ownership.move(TOPIC, "a"))
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            with pytest.raises(TopicUnavailable):
                await move
            owners = [one for one in (b, c) if TOPIC in one.served()]
            assert len(owners) == 1
            await publish(owners, 10)
            a.gate.wake()
            for _ in range(2_000):
                assert TOPIC not in a.served()
                await publish([a, *owners], 1)
            assert owners[0].host.disk[TOPIC].rows == world.acked[TOPIC]

    run(tmp_path, story)


def test_all_brokers_that_lost_etcd_together_keep_their_topics(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as brokers:
            await brokers[0].create(TOPIC, "object")
            for broker in brokers:
                broker.meta.is_away = True
            await asyncio.sleep(10 * LEASE_MS / 1_000)
            assert TOPIC in brokers[0].served()
            for broker in reversed(brokers):  # the owner comes back last, and within the time of a lease
                broker.meta.is_away = False
                await asyncio.sleep(0.4 * LEASE_MS / 1_000)
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            assert world.epochs[TOPIC] == (1, "a")
            assert TOPIC in brokers[0].served()

    run(tmp_path, story)


def test_a_broker_that_was_cut_off_stores_nothing_before_it_knows_what_it_has_lost(tmp_path: Path) -> None:
    """Cursors of a topic that another broker has by now would be set back. The session alone comes back earlier."""

    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, "object")
            assert a.ownership is not None
            a.gate.watches_hang = a.meta.is_away = True
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            assert TOPIC in b.served()
            a.meta.is_away = False
            refused = 0
            while a.ownership.owns(TOPIC):
                with pytest.raises(Fenced):
                    a.meta.put_all({"/test": b"a cursor"})
                refused += 1
                await asyncio.sleep(0.0001)
            assert refused > 1
            async with asyncio.timeout(LEASE_MS / 1_000):
                while True:
                    with contextlib.suppress(Fenced):
                        a.meta.put_all({"/test": b"its own"})
                        break
                    await asyncio.sleep(0.001)
            await a.create(OTHER, None)
            assert OTHER in a.served()

    run(tmp_path, story)


def test_an_owner_that_has_lost_a_topic_and_got_it_back_stores_no_earlier_cursor(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, "object")
            assert a.ownership is not None
            assert b.ownership is not None
            a.gate.watches_hang = a.meta.is_away = True
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            assert TOPIC in b.served()
            key = topic_record_key(TOPIC)
            found = b.meta._store.get(key)
            assert found is not None
            back = TopicIdentity.decode(found.value).owned_by(TOPIC, "a", 3)
            a.meta.is_away = False
            b.meta.put_if(key, back.encode(), found.revision)
            while world.epochs[TOPIC] != (3, "a") or a.served().get(TOPIC) != 3:
                state = a.ownership._view.topic(TOPIC)
                if state is not None and state.epoch == 3 and a.ownership._owned._opened.get(TOPIC):
                    assert a.served().get(TOPIC) in (None, 3)
                    assert a.ownership._owned._opened[TOPIC].epoch == 3 or not a.ownership.owns(TOPIC)
                await asyncio.sleep(0.0001)
            assert a.ownership.owns(TOPIC)

    run(tmp_path, story)


def test_a_topic_that_could_not_be_opened_and_went_elsewhere_is_no_problem_any_more(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            world.store_is_away = True
            with pytest.raises(TopicUnavailable):
                await a.create(TOPIC, "object")
            assert a.ownership is not None
            assert TOPIC in a.ownership.problems()
            found = b.meta._store.get(topic_record_key(TOPIC))
            assert found is not None
            moved = TopicIdentity.decode(found.value).owned_by(TOPIC, "b", 2)
            assert b.meta.put_if(topic_record_key(TOPIC), moved.encode(), found.revision)
            world.store_is_away = False
            await asyncio.sleep(20)
            assert TOPIC in b.served()
            assert a.ownership.problems() == {}
            assert a.ownership._owned._tries == {}

    run(tmp_path, story)


def test_a_move_that_is_asked_for_twice_is_made_once_and_of_two_moves_one_goes_first(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as (a, b, c):
            await a.create(TOPIC, "object")
            assert a.ownership is not None
            assert b.ownership is not None
            assert c.ownership is not None
            same = (one.ownership.move(TOPIC, "b") for one in (a, b, c, a) if one.ownership is not None)
            await asyncio.gather(*same)
            assert TOPIC in b.served()
            assert b.ownership.counts.taken == 1
            both = await asyncio.gather(
                a.ownership.move(TOPIC, "a"), c.ownership.move(TOPIC, "c"), return_exceptions=True
            )
            (refused,) = (one for one in both if one is not None)
            assert isinstance(refused, TopicUnavailable)
            assert "another move" in str(refused)
            assert sum(TOPIC in one.served() for one in (a, b, c)) == 1
            await publish([a, b, c], 10)

    run(tmp_path, story)


def test_a_leader_that_sees_a_request_before_the_topic_does_not_drop_it(tmp_path: Path) -> None:
    """Watches of records and of requests do not wait for each other."""

    async def story(world: World) -> None:
        async with cluster(world, "b", "a") as (b, a):
            assert a.ownership is not None
            assert a.ownership.leader() == "b"
            b.gate.late_prefix = TOPIC_RECORDS
            await a.create(TOPIC, None)
            move = asyncio.create_task(a.ownership.move(TOPIC, "b"))
            await asyncio.sleep(5)
            b.gate.late_prefix = ""
            async with asyncio.timeout(5):
                await move
            assert TOPIC in b.served()

    run(tmp_path, story)


def test_who_serves_a_topic_that_was_created_again_stays_known(tmp_path: Path) -> None:
    """The former owner learns late that its topic was deleted, when another broker serves the new one already."""

    async def story(world: World) -> None:
        async with cluster(world, "b", "a") as (b, a):
            assert b.ownership is not None
            await a.create(TOPIC, None)
            found = b.meta._store.get(topic_record_key(TOPIC))
            assert found is not None
            a.gate.late_prefix = TOPIC_RECORDS
            assert b.meta.delete(found.key, found.revision)
            await asyncio.sleep(1)
            await b.create(TOPIC, None)
            await asyncio.sleep(1)
            a.gate.late_prefix = ""
            await asyncio.sleep(1)
            assert b.ownership._view.serving(TOPIC) is not None
            assert TOPIC not in a.served()

    run(tmp_path, story)


def test_drained_brokers_are_the_last_resort_for_topics_of_a_dead_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as (a, b, c):
            await a.create(TOPIC, "object")
            assert b.ownership is not None
            for one in "bc":
                await b.ownership.drain(one)
            await publish([a], 10)
            await a.kill()
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            assert sum(TOPIC in one.served() for one in (b, c)) == 1
            await publish([b, c], 10)
            again = Broker(world, "a", a.host.disk, far=True)
            await again.start()
            try:
                await asyncio.sleep(3 * LEASE_MS / 1_000)
                assert TOPIC in again.served(), "it is active, and the others are drained"
            finally:
                await again.kill()
            assert again.host.disk[TOPIC].rows == world.acked[TOPIC]

    run(tmp_path, story)


def test_a_broker_that_ends_gives_its_topics_to_a_drained_one_if_there_is_no_other(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, None)
            assert b.ownership is not None
            await b.ownership.drain("b")
            await a.stop()
            assert TOPIC in b.served()

    run(tmp_path, story)


def test_a_topic_that_no_broker_can_take_says_so(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, "object")
            assert b.ownership is not None
            await b.ownership._keeper.stopping()
            await asyncio.sleep(1)
            await a.kill()
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            with pytest.raises(TopicUnavailable, match="its broker a is gone; no other one can take it now"):
                b.publish(TOPIC)

    run(tmp_path, story)


def test_a_caller_whose_request_was_withdrawn_does_not_wait_for_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b") as (a, b):
            await a.create(TOPIC, None)
            assert b.ownership is not None
            a.gate.pause()
            move = asyncio.create_task(b.ownership.move(TOPIC, "b"))
            await asyncio.sleep(0.5)
            key = keys.topic_key(keys.MOVES, TOPIC)
            found = b.meta._store.get(key)
            assert found is not None
            assert b.meta.delete(key, found.revision)
            with pytest.raises(TopicUnavailable, match="was withdrawn"):
                async with asyncio.timeout(1):
                    await move
            a.gate.wake()

    run(tmp_path, story)


def test_a_caller_that_sees_its_request_go_before_the_new_owner_knows_that_the_topic_has_moved(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as (a, b, c):
            await a.create(TOPIC, None)
            await asyncio.sleep(1)
            assert c.ownership is not None
            c.gate.late_prefix = TOPIC_RECORDS
            async with asyncio.timeout(5):
                await c.ownership.move(TOPIC, "b")
            assert TOPIC in b.served()

    run(tmp_path, story)


@pytest.mark.parametrize("moves", [False, True])
def test_a_record_that_cannot_be_read_stops_its_own_topic_alone(tmp_path: Path, moves: bool) -> None:
    """As one of a newer version, whose owner has died: the leader goes on with all that comes after it."""

    async def story(world: World) -> None:
        async with cluster(world, "a", "b", "c") as (a, b, c):
            await a.create(TOPIC, "object")
            await c.create(OTHER, "object")
            assert b.ownership is not None
            world.store().put_all({topic_record_key(TOPIC): b"{}"})
            if moves:
                move = keys.MoveRecord("b", "a broker that is gone")
                world.store().put_all({keys.topic_key(keys.MOVES, TOPIC): move.encode()})
            await a.kill()
            await asyncio.sleep(3 * LEASE_MS / 1_000)
            report = await b.ownership.drain("c", timeout_ms=30_000)
            assert (report.total, report.moved) == (1, 1)
            assert OTHER in b.served()

    run(tmp_path, story)
