"""The server stopped for a while and continued, as by SIGSTOP, a debugger or a virtual machine that is moved."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from danube.consumer import SubType

from parts.danube import connect, producer, serving, subscriber
from parts.processes import pause


def test_a_server_that_was_stopped_takes_the_answers_that_wait_for_it(tmp_path: Path) -> None:
    """SIGSTOP for longer than the time of a delivery: no message is given up that a consumer has acknowledged."""
    how = {"ack_timeout_ms": 2_000, "redeliveries_max": 0, "poison": "drop", "redelivery_delay_ms": 100}
    with serving(tmp_path, **how) as server:

        async def go() -> list[str]:
            client = await connect(server)
            sender = await producer(client)
            async with subscriber(client, kind=SubType.EXCLUSIVE) as receiver:
                for text in ("a", "b", "c"):
                    await sender.send(text.encode())
                first, *others = await receiver.take(3, ack=False)
                assert server.process is not None
                os.kill(server.process.pid, signal.SIGSTOP)
                try:
                    answers = [asyncio.create_task(receiver.consumer.ack(one)) for one in (first, *others)]
                    await asyncio.to_thread(pause, 5.0)
                finally:
                    os.kill(server.process.pid, signal.SIGCONT)
                await asyncio.wait_for(asyncio.gather(*answers), 30)
                await sender.send(b"d")
                return await receiver.texts(1)

        assert asyncio.run(asyncio.wait_for(go(), 90)) == ["d"]
        assert "drops offset" not in server.log()
