"""The server stopped for a while and continued, as by SIGSTOP, a debugger or a virtual machine that is moved."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from danube.consumer import SubType

import frazil
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


def test_a_client_gives_up_its_stream_to_a_stopped_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must ask other brokers, while its batch waits: the connection alone looks well for as long as the kernel."""
    caplog.set_level(logging.DEBUG, "frazil.client")
    with serving(tmp_path) as server, frazil.connect(server.flight) as storage:
        topic = storage.topic("/default/orders")
        topic.publish("a")
        sender = threading.Thread(target=topic.publish, args=("b",), daemon=True)
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            since = time.monotonic()
            sender.start()
            while "a stream to /default/orders ended" not in caplog.text:
                assert time.monotonic() - since < 25, "the client still waits for the stream"
                pause(0.1)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        sender.join(30)
        assert [one.payload for one in topic.read()] == [b"a", b"b"]
