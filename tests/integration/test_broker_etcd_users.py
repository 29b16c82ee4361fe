"""A server whose user etcd does not let in: it says so, does not storm etcd, and goes on once it is let in again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from parts.danube import TOPIC, Server, connect, producer, subscriber
from parts.etcd import PASSWORD, Etcd, etcd_server, gateway, turn_on_users
from parts.movers import environment

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as found:
        turn_on_users(found)
        yield found


def metadata(etcd: Etcd, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "type": "etcd", "endpoints": [etcd.endpoint], "timeout_ms": 5_000, "username": "frazil", "password": password,
    }  # fmt: skip


def administer(etcd: Etcd, path: str, **body: object) -> None:
    told = gateway(etcd.endpoint, "/v3/auth/authenticate", {"name": "root", "password": PASSWORD})
    gateway(etcd.endpoint, path, body, str(told["token"]))


def test_a_server_with_a_wrong_password_ends_and_says_so(etcd: Etcd, tmp_path: Path) -> None:
    administer(etcd, "/v3/auth/user/add", name="frazil", password=PASSWORD)
    folder = tmp_path / "server"
    Server(folder, metadata=metadata(etcd, "wr0ng-one"))
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--data", str(folder / "data")]
    command += ["--config", str(folder / "frazil.yaml")]
    told = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=90, check=False)
    assert told.returncode not in (0, None)
    assert f"metadata: {etcd.endpoint} cannot be used" in told.stderr
    assert "invalid user ID or password" in told.stderr
    assert "Traceback" not in told.stderr
    assert "wr0ng-one" not in told.stderr + told.stdout


def test_a_server_whose_password_was_changed_goes_on_and_stores_all_when_it_is_right_again(
    etcd: Etcd, tmp_path: Path
) -> None:
    administer(etcd, "/v3/auth/user/add", name="frazil", password=PASSWORD)
    administer(etcd, "/v3/auth/user/grant", user="frazil", role="root")
    server = Server(tmp_path / "server", metadata=metadata(etcd))

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            administer(etcd, "/v3/auth/user/changepw", name="frazil", password="another")
            asked = refusals(etcd)
            for number in range(30):
                await sender.send(str(number).encode())
                assert await receiver.texts(1) == [str(number)]
                await asyncio.sleep(0.05)
            assert refusals(etcd) - asked < 30, "etcd is asked by the calls that need it, not by each message"
            code, details = await new_subscription()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "invalid user ID or password" in details
            assert refusals(etcd) > asked
            administer(etcd, "/v3/auth/user/changepw", name="frazil", password=PASSWORD)
        for _ in range(300):
            if (await new_subscription())[0] is grpc.StatusCode.OK:
                break
            await asyncio.sleep(0.1)
        server.stop()
        server.start()
        async with subscriber(await connect(server)) as receiver:
            await sender.send(b"after")
            assert await receiver.texts(1) == ["after"], "it goes on behind what was acknowledged"

    async def new_subscription() -> tuple[grpc.StatusCode, str]:
        request = pb.ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription="new", subscription_type=1)
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            try:
                await stubs.ConsumerServiceStub(channel).Subscribe(request)
            except grpc.aio.AioRpcError as error:
                return error.code(), error.details() or ""
            return grpc.StatusCode.OK, ""

    server.start()
    try:
        asyncio.run(asyncio.wait_for(work(), 150))
        assert PASSWORD not in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def refusals(etcd: Etcd) -> int:
    """How often etcd has refused a password, by its log."""
    logs = (path.read_text(encoding="utf-8", errors="replace") for path in etcd.folder.glob("etcd-*.log"))
    return sum(log.count("authentication failed") + log.count("invalid password") for log in logs)
