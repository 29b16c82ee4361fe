"""What a broker keeps in memory of topics that it does not have any more: nothing, however many there were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.node.objects.parts import ObjectParts
from parts.cluster_nodes import WAIT_S, cluster_nodes
from parts.etcd import etcd_server


@pytest.mark.parametrize("moves", [True, False])
def test_nothing_is_kept_of_topics_that_moved_or_were_deleted(tmp_path: Path, moves: bool) -> None:
    async def run(endpoint: str) -> None:
        async with cluster_nodes(tmp_path, endpoint, "a", "b") as (a, b):
            names = [TopicName("default", f"t{number}") for number in range(6)]
            for number, name in enumerate(names):
                await a.node.create_topic(LOCAL, name, ack="object" if number % 2 else "disk")
                await a.publish(str(name), "one")
            for name in names:
                if moves:
                    await b.ownership.move(name, "b")
                else:
                    await a.node.delete_topic(LOCAL, name, force=True)
            owned = a.ownership._owned  # type: ignore[attr-defined]
            async with asyncio.timeout(WAIT_S):
                while owned._opened:  # noqa: ASYNC110 - the watch tells it
                    await asyncio.sleep(0.02)
            await a.ownership.settled()  # type: ignore[attr-defined]
            parts, host = a.node.storage.attachment, owned._host
            assert isinstance(parts, ObjectParts)
            kept = {
                "opened": host._opened,
                "adopting": host._adopting,
                "local": dict(host.local()),
                "taken": parts.acks._taken,
                "taking": parts.acks._taking,
                "uploads": parts.uploader._uploads,
                "objects": parts.objects._known,
                "topics": a.node.storage._topics,
            }
            assert kept == {name: {} for name in kept}

    with etcd_server(tmp_path / "etcd") as etcd:
        asyncio.run(asyncio.wait_for(run(etcd.endpoint), 120))
