"""A message's way as a trace, at a real OTLP receiver. All of it, with Spark, is in `test_watch.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pyarrow as pa
import pyarrow.flight
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import frazil
import frazil.aio
from frazil.core.errors import InvalidSettings
from frazil.core.settings import make_settings
from frazil.node.movers.lease import MoverName
from frazil.node.movers.log_source import RemoteOwner
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


def of_topic(found: list[Span], topic: str, name: str) -> list[Span]:
    where = "messaging.destination.name" if name == "publish" else "frazil.topic"
    return [one for one in found if one.name.startswith(name) and attributes(one).get(where) == topic]


def publishes_and_commits(receiver: Receiver, topic: str, count: int) -> tuple[list[Span], list[Span]]:
    """By offset."""
    spans = receiver.wait_for(
        lambda found: all(len(of_topic(found, topic, name)) >= count for name in ("publish", "commit"))
    )
    both = [sorted(of_topic(spans, topic, name), key=offset_of) for name in ("publish", "commit")]
    assert [len(each) for each in both] == [count, count]
    return both[0], both[1]


def offset_of(span: Span) -> int:
    return int(attributes(span)["frazil.offset"])


def traceparent(trace: int) -> str:
    return f"00-{trace:032x}-b7ad6b7169203331-01"


def trace_of(span: Span) -> int:
    return int.from_bytes(span.trace_id, "big")


def test_what_a_program_publishes_within_a_span_belongs_to_its_trace(server: Server, receiver: Receiver) -> None:
    name, tracer = "/default/within-a-span", TracerProvider().get_tracer("a program")
    with frazil.connect(server.flight) as storage:
        topic = storage.topic(name)
        topic.publish("without a span")
        with tracer.start_as_current_span("one") as one:
            topic.publish("tea")
        with tracer.start_as_current_span("many") as many:
            topic.publish_many(["milk", "sugar", "bread"])
        topic.publish("without a span again")
    publishes, commits = publishes_and_commits(receiver, name, 2)
    callers = [each.get_span_context() for each in (one, many)]
    assert [trace_of(each) for each in publishes] == [caller.trace_id for caller in callers]
    assert [int.from_bytes(each.parent_span_id, "big") for each in publishes] == [caller.span_id for caller in callers]
    assert [each.parent_span_id for each in commits] == [each.span_id for each in publishes]
    assert [offset_of(each) for each in publishes] == [offset_of(each) for each in commits] == [1, 2]
    assert [attributes(each)["messaging.batch.message_count"] for each in publishes] == [1, 3]
    for publish, commit in zip(publishes, commits, strict=True):
        begin, end = publish.start_time_unix_nano, publish.end_time_unix_nano
        assert begin <= commit.start_time_unix_nano <= commit.end_time_unix_nano == end


def tell_of_a_move(server: Server, topic: str, log_id: str, end: int) -> None:
    """As a mover does."""
    mover = MoverName("one", "h", 1)
    move = {"start": 0, "end": end, "started_us": 1, "written_us": 2, "committed_us": 3, "snapshot_id": 4}
    report = {"topic": topic, "log_id": log_id, "table": "t", "log_end": end, "table_end": end, "moved": move}
    report |= {"lag_bytes": 0, "lag_rows": 0, "error": None, "last_error": None}
    told = {"state": "running", "rows": end, "commits": 1, "error": None, "topics": {topic: report}}
    with contextlib.closing(RemoteOwner(server.flight)) as owner:
        owner.ask_to_lead(mover, 5_000)
        owner.tell(mover, told)


def test_a_batch_is_traced_up_to_where_its_table_has_it(server: Server, receiver: Receiver) -> None:
    name = "/default/moved"
    with frazil.connect(server.flight) as storage:
        topic = storage.topic(name, schema=pa.schema([("n", pa.int64())]))
        with TracerProvider().get_tracer("a program").start_as_current_span("many"):
            topic.publish_many(pa.record_batch({"n": range(1_000)}))
        log_id = topic.stats().log_id
    publishes_and_commits(receiver, name, 1)
    tell_of_a_move(server, name, log_id, 1_000)
    spans = receiver.wait_for(lambda found: bool(of_topic(found, name, "visible")))
    (publish,), (move,), (visible,) = (of_topic(spans, name, each) for each in ("publish", "move", "visible"))
    assert {(each.trace_id, each.parent_span_id) for each in (move, visible)} == {(publish.trace_id, publish.span_id)}
    assert attributes(move)["frazil.offset"] == 0
    assert attributes(visible)["frazil.snapshot_id"] == "4"


def test_callers_whose_messages_go_as_one_batch_have_each_a_span_of_their_own(
    server: Server, receiver: Receiver
) -> None:
    name, tracer = "/default/callers", TracerProvider().get_tracer("a program")

    async def publish(topic: frazil.aio.Topic, traced: bool) -> tuple[int, int]:
        if not traced:
            return await topic.publish("x"), 0
        with tracer.start_as_current_span("one") as span:
            return await topic.publish("x"), span.get_span_context().trace_id

    async def work() -> list[tuple[int, int]]:
        async with await frazil.aio.connect(server.flight) as storage:
            topic = await storage.topic(name)
            return list(await asyncio.gather(*(publish(topic, n % 5 == 0) for n in range(40))))

    published = {offset: trace for offset, trace in asyncio.run(asyncio.wait_for(work(), 60)) if trace}
    publishes, _ = publishes_and_commits(receiver, name, len(published))
    assert {offset_of(each): trace_of(each) for each in publishes} == published
    assert max(attributes(each)["messaging.batch.message_count"] for each in publishes) > 1


def test_a_message_of_a_flight_client_may_have_its_trace_among_its_attributes(
    server: Server, receiver: Receiver
) -> None:
    name = "/default/in-attributes"
    with frazil.connect(server.flight) as storage:
        topic = storage.topic(name)
        traced = [frazil.Outgoing("x", attributes={"a": "b", "traceparent": traceparent(n)}) for n in range(1, 101)]
        topic.publish_many([frazil.Outgoing("x", attributes={"a": "b"}), "x", *traced])
        topic.publish("x", attributes={"traceparent": NOT_SAMPLED})
        topic.publish("x", attributes={"traceparent": "nonsense"})
        topic.publish("x", attributes={"traceparent": PARENT})
    publishes, commits = publishes_and_commits(receiver, name, 33)  # of one batch the first 32
    assert [offset_of(each) for each in commits] == [*range(2, 34), 104]
    assert [trace_of(each) for each in publishes] == [*range(1, 33), int.from_bytes(TRACE, "big")]


def test_what_is_published_within_a_span_that_is_not_sampled_is_not_traced(server: Server, receiver: Receiver) -> None:
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("a program")
    with frazil.connect(server.flight) as storage:
        with tracer.start_as_current_span("quiet"):
            storage.topic("/default/not-sampled").publish("tea")
        storage.topic("/default/sampled").publish("tea", attributes={"traceparent": PARENT})
    spans, _ = publishes_and_commits(receiver, "/default/sampled", 1)
    assert spans
    assert not of_topic(receiver.spans, "/default/not-sampled", "publish")


def put(
    server: Server, topic: str, batch: pa.RecordBatch, notes: list[bytes], headers: list[tuple[bytes, bytes]]
) -> None:
    """Batches of a client that speaks Flight by itself."""
    asked = json.dumps({"topic": topic, "producer": "by hand"}).encode()
    with pa.flight.connect(server.flight) as client:
        options = pa.flight.FlightCallOptions(headers=headers, timeout=30)
        descriptor = pa.flight.FlightDescriptor.for_command(asked)
        writer, answers = client.do_put(descriptor, batch.schema, options)
        answers.read()
        for note in notes:
            writer.write_with_metadata(batch, pa.py_buffer(note))
            answers.read()
        writer.close()


def test_batches_of_a_stream_belong_to_the_trace_in_the_metadata_of_its_call(
    server: Server, receiver: Receiver
) -> None:
    name, schema = "/default/by-stream", pa.schema([("n", pa.int64())])
    with frazil.connect(server.flight) as storage:
        storage.topic(name, schema=schema)
    batch = pa.record_batch({"n": [1, 2]})
    own = json.dumps({"sequence": 2, "traces": [[1, traceparent(7)], [5, traceparent(8)]]}).encode()
    put(server, name, batch, [b'{"sequence": 0}', own], [(b"traceparent", PARENT.encode())])
    publishes, _ = publishes_and_commits(receiver, name, 2)  # row 5 of two is none
    assert [trace_of(each) for each in publishes] == [int.from_bytes(TRACE, "big"), 7]
    assert [offset_of(each) for each in publishes] == [0, 3]


def test_a_batch_that_is_refused_has_a_span_that_says_why(server: Server, receiver: Receiver) -> None:
    name, schema = "/default/refused", pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with frazil.connect(server.flight) as storage:
        storage.topic(name, schema=schema)
    batch = pa.record_batch({"n": pa.array([None], pa.int64())}, schema=schema)
    note = json.dumps({"sequence": 0, "traces": [[0, traceparent(9)]]}).encode()
    put(server, name, batch, [note], [])
    (span,) = of_topic(receiver.wait_for(lambda found: bool(of_topic(found, name, "publish"))), name, "publish")
    assert trace_of(span) == 9
    assert "column 'n' has 1 nulls and may have none" in span.status.message


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
        "import sys, frazil.serve.process, frazil.node.node;"
        f"frazil.node.node.open_node({str(tmp_path)!r}, serves=True).close();"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_client_imports_nothing_of_opentelemetry(tmp_path: Path) -> None:
    code = (
        "import sys, frazil, frazil.client.window as window;"
        "part = window.TracedPart(None); part.traced(0); assert not part.traces;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)


def test_an_endpoint_that_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"traces\.endpoint: must be like http://127"):
        make_settings({"traces": {"endpoint": "localhost:4317"}})
