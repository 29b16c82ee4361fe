"""A topic read through the catalog alone: the same rows as from its log, and clear words for what is not a topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from tiers import NAME, publish, rewrite, rows_of

import frazil
import frazil.aio
from frazil.cli.main import main
from frazil.core.settings import Settings, make_settings
from frazil.lake.tables.token import TRANSFORMED
from parts.moving import HandMover

TYPED = pa.schema(
    [
        pa.field("user", pa.string(), nullable=False),
        pa.field("small", pa.int16()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("where", pa.struct([pa.field("x", pa.float64())])),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


@pytest.fixture
def elsewhere(settings: Settings, tmp_path: Path) -> Settings:
    """The settings of a node that shares nothing with the owner but the catalog and the store."""
    assert settings.data is not None
    return make_settings(
        {
            "data": None,
            "catalog": {"type": "sql", "uri": f"sqlite:///{settings.data / 'catalog.db'}"},
            "object_store": {"type": "local", "path": settings.data / "warehouse"},
            "reader": {"poll_interval_ms": 20},
        }
    )


@pytest.fixture
def node(elsewhere: Settings) -> Iterator[frazil.ReadOnlyStorage]:
    with frazil.open_read_only(elsewhere) as node:
        yield node


def test_it_reads_what_the_table_has_as_the_log_would(topic: frazil.Topic, node: frazil.ReadOnlyStorage) -> None:
    assert node.topics() == [NAME]
    reading = node.topic(NAME)
    assert reading.schema is None
    assert list(reading.read()) == list(topic.read(end=4_000))
    batches = list(reading.read_batches())
    assert {batch.schema for batch in batches} == {next(topic.read_batches(4_500)).schema}
    assert reading.stats().end == reading.stats().messages == 4_000


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 1_999, 4_000])
def test_from_any_start(topic: frazil.Topic, node: frazil.ReadOnlyStorage, start: str | int) -> None:
    first = {"earliest": 0, "latest": 4_000}.get(str(start), start)
    assert [message.offset for message in node.topic(NAME).read(start)] == list(range(int(first), 4_000))


def test_from_a_time_and_up_to_an_end(topic: frazil.Topic, node: frazil.ReadOnlyStorage) -> None:
    third = next(topic.read(1_234))
    assert next(node.topic(NAME).read(third.append_time)).append_time == third.append_time
    late = third.append_time + timedelta(days=1)
    assert list(node.topic(NAME).read(late)) == []
    assert [message.offset for message in node.topic(NAME).read(10, end=13)] == [10, 11, 12]


def test_what_is_no_position_is_refused(topic: frazil.Topic, node: frazil.ReadOnlyStorage) -> None:
    for wrong in ("first", True, None, third_naive(topic)):
        with pytest.raises(frazil.InvalidPosition):
            node.topic(NAME).read(wrong)  # type: ignore[arg-type]
    with pytest.raises(frazil.OffsetOutOfRange, match="0 up to 4000"):
        node.topic(NAME).read(4_001)


def third_naive(topic: frazil.Topic) -> object:
    return next(topic.read(3)).append_time.replace(tzinfo=None)


def test_a_follower_gets_what_is_moved_later(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    reader = node.topic(NAME).read(3_990, end=5_000, follow=True)
    moving = threading.Timer(0.1, mover.move, (topic,))
    moving.start()
    assert [message.offset for message in reader] == list(range(3_990, 5_000))
    moving.join()


def test_closing_ends_those_that_follow(topic: frazil.Topic, node: frazil.ReadOnlyStorage) -> None:
    reader = node.topic(NAME).read("latest", follow=True)
    threading.Timer(0.05, node.close).start()
    with pytest.raises(frazil.Closed):
        next(reader)


def test_a_typed_topic_has_its_own_columns_as_iceberg_has_them(
    storage: frazil.Storage, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    readings = storage.topic("/shop/visits", schema=TYPED)
    rows = [
        {"user": "anna", "small": 1, "tags": ["a", None], "where": {"x": 0.5}, "at": None},
        {"user": "ben", "small": None, "tags": None, "where": None, "at": None},
    ]
    readings.publish_many(pa.RecordBatch.from_pylist(rows, schema=TYPED))
    mover.move(readings)
    found = node.topic("/shop/visits")
    assert found.schema is not None
    assert found.schema.names == TYPED.names
    assert found.schema.field("small").type == pa.int32()  # the narrowest that Iceberg has
    assert found.schema.field("user") == TYPED.field("user")
    assert found.schema.field("where") == TYPED.field("where")
    (batch,) = found.read_batches()
    assert batch.schema.names == ["_offset", "_append_time", *TYPED.names]
    assert batch.select(TYPED.names).to_pylist() == rows
    with pytest.raises(frazil.SchemaMismatch, match="read_batches"):
        found.read()


def test_a_column_that_comes_while_following_is_there(
    storage: frazil.Storage, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    first = pa.schema([pa.field("user", pa.string())])
    visits = storage.topic("/shop/visits", schema=first)
    visits.publish_many(pa.RecordBatch.from_pylist([{"user": "anna"}], schema=first))
    mover.move(visits)
    reader = node.topic("/shop/visits").read_batches(follow=True)
    assert next(reader).schema.names[2:] == ["user"]
    wider = first.append(pa.field("page", pa.string()))
    visits = storage.change_schema("/shop/visits", wider)
    visits.publish_many(pa.RecordBatch.from_pylist([{"user": "ben", "page": "/"}], schema=wider))
    mover.move(visits)
    assert next(reader).to_pylist()[0]["page"] == "/"
    reader.close()


def test_partitions_are_topics_of_their_own(
    storage: frazil.Storage, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    for number in range(3):
        part = storage.topic(f"/shop/parted-part-{number}")
        part.publish_many([f"{number}.{at}" for at in range(number + 1)])
        mover.move(part)
    assert node.topics() == [f"/shop/parted-part-{number}" for number in range(3)]
    for number in range(3):
        payloads = [message.payload for message in node.topic(f"/shop/parted-part-{number}").read()]
        assert payloads == [f"{number}.{at}".encode() for at in range(number + 1)]
    with pytest.raises(frazil.TopicNotFound, match="/shop/parted-part-2"):
        node.topic("/shop/parted-part-9")


def test_a_compacted_table_reads_the_same(topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage) -> None:
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_offset", "descending")]), [1_000, 2_500])
    assert [message.offset for message in node.topic(NAME).read()] == list(range(4_000))


# --- what can't be read


def test_where_no_catalog_was_ever_made_there_are_no_topics(tmp_path: Path) -> None:
    with frazil.open_read_only(tmp_path / "nothing") as node:
        assert node.topics() == []
        with pytest.raises(frazil.TopicNotFound, match="once they were moved"):
            node.topic(NAME)
    assert not (tmp_path / "nothing").exists()


def test_the_table_of_a_statement_is_not_the_topic(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    with mover.table(topic).transaction() as change:
        change.set_properties({TRANSFORMED: "true"})
    assert node.topics() == []
    with pytest.raises(frazil.TableRefused, match="statement"):
        node.topic(NAME)


def test_a_table_that_is_not_ours_is_told_apart(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    mover.catalog.create_table("shop.strange", pa.schema([pa.field("x", pa.int64())]))
    assert node.topics() == [NAME]
    with pytest.raises(frazil.TableRefused, match="no table of Frazil"):
        node.topic("/shop/strange")


def test_one_table_whose_metadata_is_gone_does_not_hide_the_others(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    broken = mover.catalog.create_table("shop.broken", pa.schema([pa.field("x", pa.int64())]))
    Path(broken.metadata_location.removeprefix("file://")).unlink()
    assert node.topics() == [NAME]
    assert "shop.broken is left out" in caplog.text


def test_following_goes_on_when_a_dropped_table_comes_back(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    reader = node.topic(NAME).read_batches(3_999, follow=True)
    assert next(reader).num_rows == 1
    location = mover.table(topic).metadata_location
    mover.catalog.drop_table("shop.orders")
    with pytest.raises(frazil.TopicNotFound, match=r"no table shop\.orders"):
        next(reader)
    mover.catalog.register_table("shop.orders", location)
    mover.move(topic, 4_010)
    assert next(reader).column("_offset").to_pylist() == list(range(4_000, 4_010))
    reader.close()


def test_another_log_under_the_same_name_is_refused_until_it_is_opened(
    storage: frazil.Storage, topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    old = node.topic(NAME)
    reader = old.read_batches("latest", follow=True)
    mover.catalog.drop_table("shop.orders")
    storage.delete_topic(NAME)
    again = storage.topic(NAME)
    publish(again, 10)
    HandMover(mover.settings).move(again)
    with pytest.raises(frazil.TableRefused, match="open the topic again"):
        next(reader)
    assert node.topic(NAME).stats().end == 10


def test_a_rollback_is_told_and_following_goes_on_after_it(
    topic: frazil.Topic, mover: HandMover, node: frazil.ReadOnlyStorage
) -> None:
    before = mover.table(topic).current_snapshot().snapshot_id
    mover.move(topic, 4_500)
    after = mover.table(topic).current_snapshot().snapshot_id
    reader = node.topic(NAME).read_batches("latest", end=5_000, follow=True)
    mover.table(topic).manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(frazil.TableRolledBack):
        next(reader)
    mover.table(topic).manage_snapshots().set_current_snapshot(after).commit()
    mover.move(topic)
    assert sum(batch.num_rows for batch in reader) == 500


def test_following_goes_on_when_the_catalog_comes_back(
    topic: frazil.Topic, elsewhere: Settings, mover: HandMover
) -> None:
    assert elsewhere.catalog.uri is not None
    file = Path(elsewhere.catalog.uri.get_secret_value().removeprefix("sqlite:///"))
    with frazil.open_read_only(elsewhere) as node:
        reader = node.topic(NAME).read_batches("latest", follow=True)
        away = file.rename(file.with_suffix(".away"))
        file.mkdir()
        _forget_connections(node)  # one that is open would still see the file
        with pytest.raises(frazil.LakeUnavailable, match=r"shop\.orders could not be loaded"):
            next(reader)
        file.rmdir()
        away.rename(file)
        mover.move(topic)
        assert next(reader).column("_offset")[0].as_py() == 4_000
        reader.close()


def _forget_connections(node: frazil.ReadOnlyStorage) -> None:
    catalog: Catalog | None = node._tables._catalog
    assert catalog is not None
    catalog.engine.dispose()  # type: ignore[attr-defined]


def test_with_asyncio(topic: frazil.Topic, elsewhere: Settings, mover: HandMover) -> None:
    async def main() -> None:
        async with await frazil.aio.open_read_only(elsewhere) as node:
            assert await node.topics() == [NAME]
            found = await node.topic(NAME)
            assert (found.name, found.schema) == (NAME, None)
            assert [message.offset async for message in found.read(3_990)] == list(range(3_990, 4_000))
            follower = found.read("latest", end=5_000, follow=True)
            first = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.05)
            location = mover.table(topic).metadata_location
            mover.catalog.drop_table("shop.orders")
            with pytest.raises(frazil.TopicNotFound):
                await first
            mover.catalog.register_table("shop.orders", location)
            mover.move(topic)
            assert [message.offset async for message in follower] == list(range(4_000, 5_000))
            assert (await found.stats()).end == 5_000

    asyncio.run(main())


def test_the_settings_may_come_as_a_file_or_as_a_mapping(
    topic: frazil.Topic, settings: Settings, tmp_path: Path
) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(f"data: {settings.data}\n")
    for where in (config, {"data": settings.data}, settings.data, settings):
        assert where is not None
        with frazil.open_read_only(where) as node:
            assert node.topics() == [NAME]


def test_the_command_line_reads_the_table_beside_the_owner(
    topic: frazil.Topic, settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = main(["consume", NAME, "--tables", "-o", "3998", "-f", r"%o\n", "--data", str(settings.data)])
    assert (code, capsysbinary.readouterr().out) == (0, b"3998\n3999\n")
