"""Unload a broker, as Danube's admin tools ask for it: all its topics, or those of some namespaces, move to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from frazil.core.cluster import BrokerInfo, DrainReport
from frazil.core.errors import ClusterOff, FrazilError
from frazil.core.names import TopicName, check_namespace
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.owning import Owning

TIMEOUT_SECONDS_DEFAULT = 60
PARALLEL_DEFAULT = 4
PARALLEL_MAX = 64


async def unloaded(owning: Owning, broker: BrokerInfo, request: Any) -> Any:
    """Answer the call. Without a choice of namespaces the broker gets no new topics until it is activated."""
    if not owning.is_clustered:
        raise ClusterOff
    chosen = _chosen(owning, broker, request)
    if request.dry_run:
        return pb.UnloadBrokerResponse(started=False, total=len(chosen), pending=len(chosen))
    timeout_ms = 1_000 * (request.timeout_seconds or TIMEOUT_SECONDS_DEFAULT)
    parallel = min(request.max_parallel or PARALLEL_DEFAULT, PARALLEL_MAX)
    if request.namespaces_include or request.namespaces_exclude:
        report = await _moved(owning, broker, chosen, timeout_ms, parallel)
    else:
        report = await owning.ownership.drain(broker.broker_id, timeout_ms=timeout_ms, parallel_max=parallel)
    return pb.UnloadBrokerResponse(
        started=True,
        total=report.total,
        succeeded=report.moved,
        failed=len(report.failed),
        pending=report.pending,
        failed_topics=sorted(report.failed),
    )


def _chosen(owning: Owning, broker: BrokerInfo, request: Any) -> list[TopicName]:
    included, excluded = set(request.namespaces_include), set(request.namespaces_exclude)
    for one in included | excluded:
        check_namespace(one)
    return [
        name
        for name in topics_of(owning, broker)
        if (not included or name.namespace in included) and name.namespace not in excluded
    ]


def topics_of(owning: Owning, broker: BrokerInfo) -> list[TopicName]:
    ownership, found = owning.ownership, []
    for name in sorted(ownership.topics()):
        owner = ownership.owner_of(name)
        if owner is not None and owner.broker_id == broker.broker_id:
            found.append(name)
    return found


async def _moved(
    owning: Owning, broker: BrokerInfo, topics: Sequence[TopicName], timeout_ms: int, parallel: int
) -> DrainReport:
    """Move these topics. What is not begun when the time is over stays."""
    ownership, moving = owning.ownership, asyncio.Semaphore(parallel)
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1_000
    failed: dict[str, str] = {}
    moved = 0

    async def move(name: TopicName) -> None:
        nonlocal moved
        async with moving:
            if asyncio.get_running_loop().time() >= deadline:
                return
            try:
                await ownership.move(name)
            except FrazilError as error:
                failed[str(name)] = error.message
            else:
                moved += 1

    await asyncio.gather(*map(move, topics))
    return DrainReport(broker.broker_id, len(topics), moved, failed)
