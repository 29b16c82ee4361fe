"""Requests of public calls: a host that sends none keeps no other host out."""

from __future__ import annotations

import asyncio

import pytest

from frazil.core.errors import TryLater
from frazil.doors import admission
from frazil.doors.admission import PUBLIC_READS_MAX, PUBLIC_READS_OF_HOST_MAX, PublicReads


async def hold(reads: PublicReads, peer: str, entered: asyncio.Semaphore) -> None:
    async with reads.receiving(peer):
        entered.release()
        await asyncio.Event().wait()


def test_a_host_that_holds_many_calls_keeps_no_other_out() -> None:
    async def work() -> None:
        reads, entered = PublicReads(), asyncio.Semaphore(0)
        held = [asyncio.ensure_future(hold(reads, f"ipv4:10.0.0.1:{port}", entered)) for port in range(200)]
        for _ in range(PUBLIC_READS_OF_HOST_MAX):
            await entered.acquire()
        await asyncio.sleep(0.05)
        assert entered.locked(), "no more of this host"
        async with asyncio.timeout(5), reads.receiving("ipv4:10.0.0.2:1"):
            pass
        for one in held:
            one.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        assert not reads._hosts, "nothing is kept of hosts that have gone"

    asyncio.run(work())


def test_all_hosts_together_are_limited_and_who_waits_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "READ_SECONDS_MAX", 0.2)

    async def work() -> None:
        reads, entered = PublicReads(), asyncio.Semaphore(0)
        held = [asyncio.ensure_future(hold(reads, f"ipv6:[::{host}]:1", entered)) for host in range(40)]
        for _ in range(PUBLIC_READS_MAX):
            await entered.acquire()
        await asyncio.sleep(0.05)
        assert entered.locked()
        refused = await asyncio.wait_for(asyncio.gather(*held, return_exceptions=True), 10)
        assert all(isinstance(one, TryLater) for one in refused)

    asyncio.run(work())
