"""A broker with many subscriptions: what one call, one message or one second costs does not grow with their number.

Operations are counted, not timed. The long test has 200,000 subscriptions of 2,000 topics: so many topics would need as
many folders, which is a matter of the file system and not of the broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from broker_world import QUICK, World

import frazil
from frazil.broker.delivery.state import SubscriptionState
from frazil.broker.store.places import PlaceKeeper
from frazil.broker.store.progress import STEP_MAX
from frazil.broker.store.records import CONSUMERS, PROGRESS, SUBSCRIPTIONS, TOPICS, progress_key, topic_key
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.subscriptions.wake import Wake
from frazil.core.names import TopicName
from frazil.doors.http.admin.paging import page
from frazil.meta.sqlite import SqliteStore

FIRST = "/default/t0"
KIB_MAX_EACH = 12


def fill(folder: Path, topics: int, subscriptions: int) -> None:
    """As many subscriptions, each with a consumer, as if brokers had made them over the years."""
    meta = SqliteStore(folder / "meta.db")
    with frazil.open(folder / "data") as storage:
        values: dict[str, Any] = {}
        for number in range(topics):
            name = TopicName("default", f"t{number}")
            log_id = storage.create_topic(str(name)).log.log_id
            values[topic_key(TOPICS, name)] = {"reliable": True, "log_id": log_id}
        for number in range(subscriptions):
            name, own = TopicName("default", f"t{number % topics}"), f"s{number}"
            values[topic_key(SUBSCRIPTIONS, name, own)] = {"kind": "shared"}
            values[topic_key(CONSUMERS, name, own, "c")] = {"id": number + 1, "key_filters": []}
            values[progress_key(own, name)] = {"offset": 0, "acked": [], "incarnation": 7 + number, "attempts": {}}
        meta.put_all({key: json.dumps(value).encode() for key, value in values.items()})
    meta.close()


@contextmanager
def counted(**parts: tuple[Any, str]) -> Iterator[Counter[str]]:
    """How often methods of classes are called."""
    counts: Counter[str] = Counter()
    patches = []
    for label, (kind, name) in parts.items():
        real = getattr(kind, name)

        def call(*args: Any, label: str = label, real: Any = real, **more: Any) -> Any:
            counts[label] += 1
            return real(*args, **more)

        patches.append(mock.patch.object(kind, name, call))
    for patch in patches:
        patch.start()
    try:
        yield counts
    finally:
        for patch in patches:
            patch.stop()


def test_neither_a_start_nor_a_message_nor_time_costs_more_with_the_square_of_subscriptions(tmp_path: Path) -> None:
    topics, subscriptions = 20, 2_000
    fill(tmp_path, topics, subscriptions)

    async def go() -> None:
        with frazil.open(tmp_path / "data") as storage:
            here = World(storage, tmp_path, QUICK)
            tasks = len(asyncio.all_tasks())
            with counted(
                reads=(SqliteStore, "get"), lists=(SqliteStore, "list"), writes=(SqliteStore, "put_all"),
                joined=(SubscriptionState, "joined"),
            ) as counts:  # fmt: skip
                await here.broker.start()
                assert here.broker._directory._carrying is not None
                await here.broker._directory._carrying
            assert counts["reads"] <= 1, "whose folder it is"
            assert counts["lists"] <= 9
            assert counts["writes"] == 1, "the records of all topics, which brokers of those years did not write"
            assert counts["joined"] == subscriptions
            assert len(asyncio.all_tasks()) - tasks <= 5, "a subscription without a consumer has no task"
            await messages_cost_only_those_who_listen(here, subscriptions // topics)
            await changes_look_at_no_other(here)
            await progress_is_stored_in_steps(here, subscriptions)
            await here.broker.close()
            here.meta.close()

    asyncio.run(asyncio.wait_for(go(), 100))


async def messages_cost_only_those_who_listen(here: World, of_topic: int) -> None:
    number = here.broker._consumers[1].consumer.id
    _, subscription, _, stream = here.broker.connect(number)
    topic = here.broker.topics[TopicName.parse(FIRST)]
    assert topic.feed is not None
    assert len(topic.subscriptions) == of_topic >= 100
    with counted(woken=(Wake, "set")) as counts:
        for payload in map(str, range(5)):
            await here.send(payload, topic=FIRST)
            entry = await asyncio.wait_for(stream.take(), 10)
            assert entry is not None
            subscription.ack(entry.offset, stream.incarnation)
    assert 5 <= counts["woken"] <= 5 * 8, "only the subscription that has a consumer"
    assert len(topic.feed._listening) <= 1


async def changes_look_at_no_other(here: World) -> None:
    read: list[int] = []
    real = SqliteStore._snapshot

    def listed(store: SqliteStore, prefix: str, suffix: str = "") -> Any:
        found = real(store, prefix, suffix)
        read.append(len(found.entries))
        return found

    with mock.patch.object(SqliteStore, "_snapshot", listed):
        await here.broker.subscribe(FIRST, "new", next(iter(here.broker.topics.values())).subscriptions["s0"].kind, "c")
        await here.admin.reset(TopicName.parse(FIRST), "new", 0)
        await here.admin.delete_subscription(TopicName.parse(FIRST), "new")
        await here.broker.create_producer("/default/fresh", "p", reliable=True)
        await here.broker.delete_topic(TopicName.parse("/default/fresh"), force=True)
    assert sum(read) <= 10, "what is stored of others is not read"
    keeper = here.broker._places
    assert isinstance(keeper, PlaceKeeper)
    assert {str(topic.name) for topic in keeper._moved} <= {FIRST}, "cursors that stand still are not looked for"


async def progress_is_stored_in_steps(here: World, subscriptions: int) -> None:
    steps: list[int] = []
    real = here.meta.put_all

    def put_all(values: Mapping[str, bytes]) -> None:
        steps.append(sum(key.startswith(PROGRESS) for key in values))
        real(values)

    for name, topic in here.broker.topics.items():
        for one in topic.subscriptions.values():
            assert isinstance(one, Subscription)
            here.broker._progress.moved(progress_key(one.name, name), one)
    with mock.patch.object(here.meta, "put_all", put_all):
        await here.broker._progress.flush()
        assert sum(steps) == subscriptions
        assert max(steps) <= STEP_MAX
        steps.clear()
        await here.broker._progress.flush()
        assert not steps, "those that stand still are not stored again"


def test_a_page_sorts_no_more_than_it_shows() -> None:
    names = [f"s{number}" for number in range(2_000)]
    shown: list[str] = []
    after: str | None = None
    more = True
    while more:
        found, more = page(reversed(names), str, 300, after)
        shown += found
        after = found[-1]
    assert shown == sorted(names)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_thousand_subscriptions(tmp_path: Path) -> None:
    topics, subscriptions = 2_000, 200_000
    fill(tmp_path, topics, subscriptions)

    def resident_kib() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

    async def go() -> None:
        with frazil.open(tmp_path / "data") as storage:
            here = World(storage, tmp_path, QUICK)
            before = resident_kib()
            started = time.monotonic()
            await here.broker.start()
            print(f"started in {time.monotonic() - started:.1f} s")
            each = (resident_kib() - before) / subscriptions
            print(f"{each:.1f} KiB for each subscription")
            assert each < KIB_MAX_EACH
            cpu = time.process_time()
            await asyncio.sleep(20)
            idle = (time.process_time() - cpu) / 20
            print(f"{100 * idle:.1f} % of a core when idle")
            assert idle < 0.1
            await messages_cost_only_those_who_listen(here, subscriptions // topics)
            await changes_look_at_no_other(here)
            await progress_is_stored_in_steps(here, subscriptions)
            await here.broker.close()
            here.meta.close()

    asyncio.run(asyncio.wait_for(go(), 800))
