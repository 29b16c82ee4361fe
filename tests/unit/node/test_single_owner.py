"""A server that is alone owns every topic, and refuses whatever needs another broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import frazil
from frazil.core.errors import ClusterOff
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.node.node import Node

ORDERS, PART = TopicName.parse("/default/orders"), TopicName.parse("/default/parts-part-0")


def test_it_owns_all_topics_and_their_partitions(tmp_path: Path) -> None:
    with frazil.open(tmp_path / "data") as storage:
        ownership = Node(storage).ownership(LOCAL)
        for name in (ORDERS, PART):
            storage.create_topic(str(name))
            ownership.must_own(name)
        assert sorted(ownership.topics()) == [ORDERS, PART]
        assert ownership.family(TopicName.parse("/default/parts")) == {PART}
        (alone,) = ownership.brokers()
        assert (alone.broker_id, alone.topics, ownership.leader()) == (ownership.broker_id, 2, ownership.broker_id)
        assert ownership.owner_of(ORDERS) == alone
        assert (ownership.balance().mean, ownership.balance().variation) == (2.0, 0.0)
        assert not ownership.is_clustered


def test_a_move_needs_another_broker(tmp_path: Path) -> None:
    with frazil.open(tmp_path / "data") as storage:
        ownership = Node(storage).ownership(LOCAL)
        mine = ownership.broker_id
        for call in (ownership.move(ORDERS), ownership.drain(mine), ownership.activate(mine), ownership.rebalance()):
            with pytest.raises(ClusterOff, match="no other broker"):
                asyncio.run(call)  # type: ignore[arg-type]
