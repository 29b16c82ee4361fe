"""A folder that is served, read through its owner: the same rows as the owner has, from any start."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tiers import NAME, publish, remove_what_the_table_has

import frazil
from frazil.cli.main import main
from frazil.client.topic import RemoteTopic
from frazil.core.settings import FlightSettings, Settings
from frazil.doors.flight.door import flight_door
from frazil.log.folder.ownership import published_addresses
from parts.moving import HandMover


@pytest.fixture
def address(storage: frazil.Storage, settings: Settings) -> Iterator[str]:
    with flight_door(storage, FlightSettings(port=0)) as door, published_addresses(settings, {"flight": door.address}):
        yield door.address


@pytest.fixture
def served(topic: frazil.Topic, address: str) -> Iterator[RemoteTopic]:
    with frazil.connect(address) as remote:
        yield remote.topic(NAME, create=False)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("_offset").to_pylist()]


def test_it_reads_from_table_and_log_as_the_owner_does(topic: frazil.Topic, served: RemoteTopic) -> None:
    assert served.schema is None
    mine = pa.Table.from_batches(list(served.read_batches()))
    assert mine.combine_chunks().equals(pa.Table.from_batches(list(topic.read_batches())).combine_chunks())


@pytest.mark.parametrize("start", [0, 3_499, 4_200, 5_000, "latest"])
def test_from_any_offset(served: RemoteTopic, start: int | str) -> None:
    first = 5_000 if start == "latest" else int(start)
    assert offsets(served.read_batches(start)) == list(range(first, 5_000))


def test_from_any_time(topic: frazil.Topic, served: RemoteTopic) -> None:
    for offset in (0, 1_234, 3_999, 4_700):
        time = next(topic.read(offset)).append_time
        expected = next(topic.read(time)).offset
        assert offsets(served.read_batches(time, end=expected + 1)) == [expected]


def test_beyond_the_end_is_refused(served: RemoteTopic) -> None:
    with pytest.raises(frazil.OffsetOutOfRange):
        served.read_batches(5_001)


def test_a_follower_gets_what_is_published_later(
    storage: frazil.Storage, topic: frazil.Topic, mover: HandMover, served: RemoteTopic
) -> None:
    reader = served.read_batches(4_990, end=5_100, follow=True)
    assert next(reader).num_rows
    publishing = threading.Timer(0.05, publish, (topic, 100, 10))
    publishing.start()
    assert offsets(reader)[-1] == 5_099
    publishing.join()


def test_what_is_moved_and_removed_while_it_is_read_comes_from_the_table(
    storage: frazil.Storage, topic: frazil.Topic, mover: HandMover, served: RemoteTopic
) -> None:
    publish(topic, 3_000)  # several segments, of which the reader has opened the first
    reader = served.read_batches(4_000)
    first = next(reader)
    publish(topic, 1_000)
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 9_000)
    assert topic.log.first_offset > 7_000
    assert [*first.column("_offset").to_pylist(), *offsets(reader)] == list(range(4_000, 8_000))


def test_a_topic_that_is_deleted_ends_those_that_follow(storage: frazil.Storage, served: RemoteTopic) -> None:
    reader = served.read_batches("latest", follow=True)
    storage.delete_topic(NAME)
    storage.topic(NAME)
    with pytest.raises(frazil.TopicNotFound, match="another was created"):
        next(reader)


@pytest.mark.usefixtures("topic", "address")
def test_the_command_line_reads_through_the_owner(
    settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = main(["consume", NAME, "-o", "4998", "-f", r"%o\n", "--data", str(settings.data)])
    assert (code, capsysbinary.readouterr().out) == (0, b"4998\n4999\n")
