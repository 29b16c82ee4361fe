"""A message's way as a trace, at a real OTLP receiver. All of it, with Spark, is in `test_watch.py`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from frazil.core.errors import InvalidSettings
from frazil.core.settings import make_settings
from parts.danube import Server, connect, producer
from parts.otlp import Receiver, attributes, receiving
from parts.processes import free_port

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = PARENT[:-2] + "00"
TRACE = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
CALLER = bytes.fromhex("b7ad6b7169203331")


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nothing is sampled but what its caller traces."""
    traces = {"endpoint": receiver.endpoint, "sample_ratio": 0, "headers": {"api-key": "a-key-of-the-receiver"}}
    server = Server(tmp_path_factory.mktemp("traces"), others={"traces": traces})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # ms from a span to its export
        server.start()
    try:
        yield server
        assert server.stop() == 0
        assert "a-key-of-the-receiver" not in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


async def send(server: Server, topic: str, parent: str | None, attribute: str | None) -> None:
    async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
        producers = stubs.ProducerServiceStub(channel)
        made = await producers.CreateProducer(
            pb.ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
        )
        message = pb.StreamMessage(msg_id=pb.MsgID(producer_id=made.producer_id, topic_name=topic), payload=b"x")
        if attribute is not None:
            message.attributes["traceparent"] = attribute
        metadata = () if parent is None else (("traceparent", parent),)
        await producers.SendMessage(message, metadata=metadata)


@pytest.mark.parametrize(("parent", "attribute"), [(PARENT, None), (None, PARENT)])
def test_a_message_whose_caller_traces_it_is_traced(
    server: Server, receiver: Receiver, parent: str | None, attribute: str | None
) -> None:
    topic = f"/default/by-{'call' if parent else 'message'}"
    asyncio.run(asyncio.wait_for(send(server, topic, parent, attribute), 60))
    name = f"publish {topic}"
    spans = receiver.wait_for(
        lambda found: (
            any(one.name == name for one in found)
            and any(one.name == "commit" and attributes(one)["frazil.topic"] == topic for one in found)
        )
    )
    publish = next(one for one in spans if one.name == name)
    commit = next(one for one in spans if one.name == "commit" and attributes(one)["frazil.topic"] == topic)
    assert (publish.trace_id, publish.parent_span_id) == (TRACE, CALLER)
    assert (commit.trace_id, commit.parent_span_id) == (TRACE, publish.span_id)
    assert attributes(publish)["messaging.destination.name"] == topic
    assert attributes(publish)["frazil.offset"] == attributes(commit)["frazil.offset"] == 0
    begin, end = publish.start_time_unix_nano, publish.end_time_unix_nano
    assert begin <= commit.start_time_unix_nano <= commit.end_time_unix_nano == end
    assert receiver.headers["api-key"] == "a-key-of-the-receiver"


def test_others_are_not_traced_and_neither_is_what_its_caller_does_not(server: Server, receiver: Receiver) -> None:
    async def work() -> None:
        await send(server, "/default/quiet", None, None)
        await send(server, "/default/quiet", NOT_SAMPLED, None)
        await send(server, "/default/quiet", "nonsense", None)
        await send(server, "/default/last", PARENT, None)

    asyncio.run(asyncio.wait_for(work(), 60))
    spans = receiver.wait_for(lambda found: any(one.name == "publish /default/last" for one in found))
    assert not [one.name for one in spans if "quiet" in one.name]


def test_a_receiver_that_is_not_there_does_not_keep_messages_from_being_published(tmp_path: Path) -> None:
    async def work() -> None:
        sender = await producer(await connect(server))
        for _ in range(20):
            await sender.send(b"x")

    traces = {"endpoint": f"http://127.0.0.1:{free_port()}", "sample_ratio": 1}
    server = Server(tmp_path, others={"traces": traces})
    server.start()
    try:
        asyncio.run(asyncio.wait_for(work(), 60))
        assert server.stop() == 0
    finally:
        server.kill()


def test_without_an_endpoint_nothing_of_opentelemetrys_sdk_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, frazil.serve.process as process, frazil;"
        f"process._traces(frazil.Settings(data={str(tmp_path)!r})).__enter__();"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"traces\.endpoint: must be like http://127"):
        make_settings({"traces": {"endpoint": "localhost:4317"}})
