"""A stock Flight client beside everything else that a server does: tables, schemas of the registry, crashes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.cli.target.server import Server as Asked
from frazil.core.settings import FlightSettings, make_settings
from frazil.doors.flight.door import flight_door
from parts.danube import Server
from parts.moving import HandMover

TOPIC = "/shop/orders"
ORDER = {"type": "object", "properties": {"tea": {"type": "string"}}, "required": ["tea"]}
PATH = pa.flight.FlightDescriptor.for_path(TOPIC)


def get(client: pa.flight.FlightClient) -> pa.Table:
    (endpoint,) = client.get_flight_info(PATH).endpoints
    return client.do_get(endpoint.ticket).read_all()


def put(client: pa.flight.FlightClient, **columns: Any) -> dict[str, Any]:
    """The answer to one batch, or its error."""
    batch = pa.RecordBatch.from_pydict(columns)
    writer, answers = client.do_put(PATH, batch.schema)
    writer.write_batch(batch)
    told = answers.read()
    writer.close()
    return dict(json.loads(told.to_pybytes()))


def test_a_ticket_reads_the_table_and_the_log(tmp_path: Path) -> None:
    wal = {"max_file_size": 64 * 1024, "cache_capacity": 0, "retention": {"bytes": 1}}
    settings = make_settings({"data": tmp_path, "wal": wal})
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for first in range(0, 3_000, 100):
            topic.publish_many([f"{number} {'x' * 200}" for number in range(first, first + 100)])
        HandMover(settings).move(topic, 1_500)
        storage.maintain()
        assert 0 < topic.log.first_offset <= 1_500
        with flight_door(storage, FlightSettings(port=0)) as door, pa.flight.connect(door.address) as client:
            info = client.get_flight_info(PATH)
            assert info.total_records == -1, "how many are in the table is not looked up"
            rows = get(client)
    assert rows["_offset"].to_pylist() == list(range(3_000))
    assert rows["_payload"][7].as_py().startswith(b"7 ")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    with frazil.connect(server.flight) as remote:
        remote.topic(TOPIC)
    try:
        yield server
    finally:
        server.kill()


def test_a_topic_enforces_its_schema_for_a_stock_client(server: Server) -> None:
    http = Asked(server.http)
    definition = {"schema_type": "json_schema", "definition": json.dumps(ORDER)}
    schema_id = http.post("/v1/schemas/tea%20orders/versions", definition)["schema_id"]
    policy = {"subject": "tea orders", "validation_policy": "enforce", "enable_payload_validation": True}
    http.put(f"/v1/topics{TOPIC}/schema", policy)
    with pa.flight.connect(server.flight) as client:
        with pytest.raises(pa.ArrowInvalid, match=f"row 0: .*no schema id, and tea orders has {schema_id}"):
            put(client, payload=['{"tea": "green"}'])
        with pytest.raises(pa.ArrowInvalid, match="row 1: the payload does not fit"):
            put(client, payload=['{"tea": "green"}', '{"tea": 7}'], schema_id=[schema_id] * 2)
        assert put(client, payload=['{"tea": "green"}'], schema_id=[schema_id])["rows"] == 1
        assert get(client)["_payload"].to_pylist() == [b'{"tea": "green"}']


def test_what_a_killed_server_had_answered_is_there_and_batches_are_whole(server: Server) -> None:
    batch = pa.RecordBatch.from_pydict({"payload": ["x" * 500] * 50})
    answered = 0
    enough = threading.Event()

    def read(answers: Any) -> None:
        nonlocal answered
        while (told := answers.read()) is not None:
            answered = json.loads(told.to_pybytes())["end_offset"]
            if answered >= 2_000:
                enough.set()

    with pa.flight.connect(server.flight) as client:
        writer, answers = client.do_put(PATH, batch.schema)
        reading = threading.Thread(target=_until_it_fails, args=(read, answers))
        reading.start()
        killing = threading.Thread(target=lambda: (enough.wait(60), server.kill()))
        killing.start()
        with pytest.raises((pa.ArrowException, OSError)):
            _write_on(writer, batch)
        killing.join()
        reading.join()
        with pytest.raises((pa.ArrowException, OSError)):
            writer.close()
    server.start()
    with pa.flight.connect(server.flight) as client:
        rows = get(client)
    assert answered >= 2_000
    assert rows.num_rows >= answered
    assert rows.num_rows % 50 == 0


def _write_on(writer: Any, batch: pa.RecordBatch) -> None:
    while True:
        writer.write_batch(batch)


def _until_it_fails(work: Any, *given: Any) -> None:
    try:
        work(*given)
    except (pa.ArrowException, OSError):
        return  # the server was killed, as it must be
