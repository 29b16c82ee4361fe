"""Tables of tenants that stock Flight clients fill and read, at a real server with security."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

from frazil.core.clock import SystemClock
from frazil.telemetry.signals import Signal
from parts.processes import pause
from parts.tenants import SECTIONS, FlightTenant, Secured, batch

pytestmark = pytest.mark.timeout(180)

READINGS = ("eu", "readings")
FIRST = {"sensor": ["roof", "cellar"], "celsius": pa.array([21, 12], pa.int32())}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("tables"), others=SECTIONS)
    found.start()
    try:
        yield found
        assert "Traceback" not in found.log()
    finally:
        found.kill()


@pytest.fixture
def tenant(server: Secured, request: pytest.FixtureRequest) -> str:
    """A tenant of this test alone."""
    return f"t{abs(hash(request.node.name)) % 10**12}"


@pytest.fixture
def client(server: Secured, tenant: str) -> Iterator[FlightTenant]:
    with FlightTenant(server.flight, server.tenant(tenant)) as found:
        yield found


def test_the_first_batch_makes_the_table_and_each_is_acknowledged_by_its_offsets(
    client: FlightTenant, tenant: str
) -> None:
    assert client.put(READINGS, batch(**FIRST), batch(**FIRST)) == [
        {"batches": 1, "rows": 2, "first_offset": 0, "end_offset": 2},
        {"batches": 1, "rows": 2, "first_offset": 2, "end_offset": 4},
    ]
    wanted = [{"sensor": "roof", "celsius": 21}, {"sensor": "cellar", "celsius": 12}] * 2
    assert client.rows(*READINGS) == client.rows(f"{tenant}.eu", "readings") == wanted
    assert client.rows(f"/{tenant}.eu/readings") == wanted
    assert client.schema(*READINGS).names == ["_offset", "_append_time", "sensor", "celsius"]
    assert client.put(("plain",), batch(x=[1]))[0]["end_offset"] == 1
    assert client.flights() == [["default", "plain"], ["eu", "readings"]]
    for path in client.flights():
        assert client.info(*path).descriptor.path == [part.encode() for part in path]


def test_a_part_is_read_by_offset_or_by_time(client: FlightTenant) -> None:
    client.put(READINGS, batch(**FIRST))
    (endpoint,) = client.info(*READINGS).endpoints
    stored = client.client.do_get(endpoint.ticket, client.options).read_all()["_append_time"][-1].as_py()
    between = int(stored.timestamp() * 1_000_000) + 1
    while SystemClock().now_us() <= between:
        pause(0.001)
    client.put(READINGS, batch(sensor=["late"]))
    place = {"dataset": "eu", "table": "readings"}
    assert [row["sensor"] for row in client.read(**place, start=1)] == ["cellar", "late"]
    assert [row["sensor"] for row in client.read(**place, start=1, end=2)] == ["cellar"]
    assert [row["sensor"] for row in client.read(**place, start={"time_us": between})] == ["late"]
    assert [row["sensor"] for row in client.read(**place, end={"time_us": between})] == ["roof", "cellar"]
    with pytest.raises(pa.ArrowInvalid, match="end: a time can't end a request that follows"):
        client.read(**place, end={"time_us": between}, follow=True)
    ticket = pa.flight.Ticket(json.dumps({"read": {**place, "start": 2, "notes": False}}).encode())
    assert client.client.do_get(ticket, client.options).read_all()["sensor"].to_pylist() == ["late"]


def test_columns_are_added_and_widened_and_missing_ones_are_null(client: FlightTenant) -> None:
    client.put(READINGS, batch(**FIRST))
    added = pa.schema([pa.field("sensor", pa.string()), pa.field("station", pa.string(), nullable=False)])
    client.put(READINGS, pa.RecordBatch.from_pylist([{"sensor": "b", "station": "north"}], schema=added))
    client.put(READINGS, batch(celsius=pa.array([2**40], pa.int64())))
    client.put(READINGS, batch(celsius=pa.array([7], pa.int16()), sensor=pa.array(["x"], pa.large_string())))
    assert client.schema(*READINGS).field("celsius").type == pa.int64()
    assert client.schema(*READINGS).field("station").nullable
    found = [(row["sensor"], row["celsius"], row["station"]) for row in client.rows(*READINGS)]
    assert found == [
        ("roof", 21, None),
        ("cellar", 12, None),
        ("b", None, "north"),
        (None, 2**40, None),
        ("x", 7, None),
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"celsius": ["warm"]}, "column 'celsius' has type string, not int32"),
        ({"celsius": pa.array([1.5], pa.float64())}, "column 'celsius' has type double, not int32"),
        ({"Celsius": pa.array([1], pa.int32())}, "column 'Celsius' differs from 'celsius' in case alone"),
        ({"_offset": [1]}, "column '_offset'.*Frazil's own"),
        ({"place": pa.array(["a"]).dictionary_encode()}, "column 'place' is dictionary-encoded; send it as string"),
        ({"at": pa.array([1], pa.timestamp("ns"))}, r"column 'at': timestamp\[ns\] has no counterpart"),
        ({"nested": pa.array([{"d": 1}], pa.struct([("d", pa.duration("s"))]))}, "column 'nested.d'"),
        ({"nothing": pa.nulls(1)}, "column 'nothing': null has no counterpart"),
        ({f"c{number}": [1] for number in range(1_000)}, "1002 columns, nested ones included, more than 1000"),
        ({"big": pa.array([2**63], pa.uint64())}, "greatest number that can be stored"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    client: FlightTenant, columns: dict[str, Any], message: str
) -> None:
    client.put(READINGS, batch(**FIRST))
    before = client.schema(*READINGS)
    with pytest.raises(pa.ArrowInvalid, match=message):
        client.put(READINGS, batch(**columns))
    assert client.schema(*READINGS).equals(before)
    assert len(client.rows(*READINGS)) == 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"_x": [1]}, "names that start with '_' are Frazil's own"),
        ({"a": [1], "A": [1]}, "column 'A' differs from 'a' in case alone"),
        ({"place": pa.array(["a"]).dictionary_encode()}, "column 'place' is dictionary-encoded"),
        ({"took": pa.array([1], pa.duration("s"))}, "column 'took'"),
        ({"big": pa.array([1, 2**63], pa.uint64())}, "column 'big' at row 1|big"),
        ({"x": pa.nulls(1_000_001, pa.bool_())}, "batch_rows_max"),
    ],
)
def test_a_refused_first_batch_creates_nothing(client: FlightTenant, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=message):
        client.put(READINGS, batch(**columns))
    assert client.flights() == []


def test_a_required_column_must_be_there(client: FlightTenant) -> None:
    required = pa.schema([pa.field("sensor", pa.string(), nullable=False), ("celsius", pa.float64())])
    client.put(READINGS, pa.RecordBatch.from_pylist([{"sensor": "a"}], schema=required))
    with pytest.raises(pa.ArrowInvalid, match="column 'sensor' is missing, and may not be null"):
        client.put(READINGS, batch(celsius=[1.0]))
    with pytest.raises(pa.ArrowInvalid, match="column 'sensor' has 1 nulls and may have none"):
        client.put(READINGS, batch(sensor=pa.array([None], pa.string()), more=[1]))
    assert client.schema(*READINGS).names == ["_offset", "_append_time", "sensor", "celsius"]


@pytest.mark.parametrize("name", [*Signal, "Traces", "metrics", "metrics_sum", "orders__errors", "orders-part-1"])
def test_names_of_telemetry_and_of_partitions_are_refused(client: FlightTenant, name: str) -> None:
    for call in (lambda: client.put(("eu", name), batch(x=[1])), lambda: client.info("eu", name)):
        with pytest.raises(pa.ArrowInvalid, match=f"the table {name} has"):
            call()
    assert client.flights() == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (("a", "b", "c"), "not 3 parts"),
        (("EU", "x"), "the dataset 'EU' must be"),
        (("eu", ".."), "neither"),
        (("eu", "x/y"), "must have the form"),
        (("eu", ""), "must be 1 to 128"),
        (("",), "must be 1 to 128"),
    ],
)
def test_wrong_descriptors_say_what_is_wrong(client: FlightTenant, path: tuple[str, ...], message: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=message):
        client.put(path, batch(x=[1]))


def test_another_schema_within_a_stream_ends_it(client: FlightTenant) -> None:
    writer, answers = client.client.do_put(
        pa.flight.FlightDescriptor.for_path(*READINGS), batch(x=[1]).schema, client.options
    )
    writer.write_batch(batch(x=[1]))
    assert json.loads(answers.read().to_pybytes())["rows"] == 1
    with pytest.raises(pa.ArrowInvalid):
        writer.write_batch(batch(y=["text"]))
    writer.close()
    assert client.rows(*READINGS) == [{"x": 1}]


def test_a_stream_without_rows_or_that_stops_leaves_what_was_acknowledged(client: FlightTenant) -> None:
    assert client.put(READINGS, schema=batch(x=[1]).schema) == []
    assert client.flights() == []
    writer, answers = client.client.do_put(
        pa.flight.FlightDescriptor.for_path(*READINGS), batch(x=[1]).schema, client.options
    )
    for number in range(3):
        writer.write_batch(batch(x=[number]))
        answers.read()
    del writer, answers  # the call is cancelled
    assert client.rows(*READINGS) == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_writers_that_extend_a_table_at_once_all_succeed(client: FlightTenant) -> None:
    client.put(READINGS, batch(n=pa.array([0], pa.int8())))

    def write(number: int) -> None:
        for turn in range(5):
            kind = (pa.int8(), pa.int16(), pa.int32(), pa.int64())[(number + turn) % 4]
            own = batch(**{f"w{number}_{turn}": [turn], "n": pa.array([number], kind), "both": [1]})
            client.put(READINGS, own, own)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    rows = client.rows(*READINGS)
    assert len(rows) == 41
    assert sorted(row["n"] for row in rows[1:]) == sorted([0, 1, 2, 3] * 10)
    for number in range(4):
        for turn in range(5):
            assert [row["n"] for row in rows if row[f"w{number}_{turn}"] == turn] == [number] * 2


def test_a_stream_goes_on_while_another_writer_changes_its_table(client: FlightTenant) -> None:
    first = batch(x=pa.array([1], pa.int32()))
    descriptor = pa.flight.FlightDescriptor.for_path(*READINGS)
    writer, answers = client.client.do_put(descriptor, first.schema, client.options)
    writer.write_batch(first)
    answers.read()
    client.put(READINGS, batch(x=pa.array([2], pa.int64()), y=["new"]))
    writer.write_batch(first)
    answers.read()
    writer.close()
    assert client.rows(*READINGS) == [{"x": 1, "y": None}, {"x": 2, "y": "new"}, {"x": 1, "y": None}]


def test_a_reader_goes_on_until_rows_have_what_it_cannot_show(client: FlightTenant) -> None:
    client.put(READINGS, batch(x=pa.array([1], pa.int32())))
    command = {"read": {"dataset": "eu", "table": "readings", "follow": True, "notes": False}}
    stream = client.client.do_get(pa.flight.Ticket(json.dumps(command).encode()), client.options)
    assert stream.read_chunk().data["x"].to_pylist() == [1]
    client.put(READINGS, batch(x=pa.array([2], pa.int64()), y=pa.nulls(1, pa.string())))
    found = stream.read_chunk().data
    assert (found.schema.names, found["x"].to_pylist()) == (["_offset", "_append_time", "x"], [2])
    client.put(READINGS, batch(y=["new"]))
    with pytest.raises(pa.ArrowInvalid, match="its columns were changed while it was read"):
        stream.read_chunk()


def test_limits_of_batches_name_themselves(client: FlightTenant) -> None:
    client.put(READINGS, batch(x=[1]))
    with pytest.raises(pa.ArrowInvalid, match="batch_rows_max"):
        client.put(READINGS, pa.RecordBatch.from_pydict({"more": pa.nulls(1_000_001, pa.bool_())}))
    wide = {f"c{number}": pa.nulls(1, pa.int64()) for number in range(100)}
    client.put(READINGS, batch(**wide))
    with pytest.raises(pa.ArrowInvalid, match="send it in smaller batches"):
        client.put(READINGS, pa.RecordBatch.from_pydict({"flag": pa.nulls(1_000_000, pa.bool_())}))
    assert "flag" not in client.schema(*READINGS).names


def test_flush_and_stats_are_of_the_table(client: FlightTenant, tenant: str) -> None:
    client.put(READINGS, batch(**FIRST))
    stats = client.act("stats", dataset="eu", table="readings")
    assert (stats["topic"], stats["messages"]) == (f"/{tenant}.eu/readings", 2)
    assert client.act("stats", topic=f"/{tenant}.eu/readings")["log_id"] == stats["log_id"]
    with pytest.raises(pa.flight.FlightUnavailableError, match="not those below 2; ask again"):
        client.act("flush", dataset="eu", table="readings", timeout_ms=200)
    for body, message in (
        ({"dataset": "eu", "table": "readings", "offset": 3}, "ends at 2, before 3"),
        ({"dataset": "eu"}, "topic: give the name"),
        ({"table": "readings", "topic": "/a/b"}, "topic: give the name"),
        ({"dataset": "eu", "table": "readings", "timeout_ms": 10**9}, "timeout_ms"),
    ):
        with pytest.raises(pa.ArrowException, match=message):
            client.act("flush", **body)
