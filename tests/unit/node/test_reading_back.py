"""One topic over table, files, cache and live tail: every offset once and in order, whatever happened to the table."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tiers import payload, publish, remove_what_the_table_has, rewrite, rows_of

import frazil
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from parts.moving import HandMover


def read(topic: frazil.Topic, start: object = "earliest", end: int | None = None) -> list[int]:
    """The offsets that a reader sees, with every payload looked at."""
    seen = []
    for message in topic.read(start, end=end):  # type: ignore[arg-type]
        assert message.payload == payload(message.offset)
        seen.append(message.offset)
    return seen


def test_a_reader_crosses_from_table_to_log(topic: frazil.Topic) -> None:
    assert read(topic) == list(range(5_000))


def test_each_batch_counts_for_the_tier_that_it_came_from(topic: frazil.Topic) -> None:
    metrics = topic.log.context.metrics
    before = metrics.reads_cached + metrics.reads_from_files
    first = topic.log.first_offset
    read(topic, 0, end=first)
    from_table = metrics.reads_from_tables
    assert from_table > 0
    assert metrics.reads_cached + metrics.reads_from_files == before
    read(topic, first)
    assert metrics.reads_from_tables == from_table
    assert metrics.reads_cached + metrics.reads_from_files > before


@pytest.mark.parametrize("start", [0, 1, 1_999, 3_333, 3_499, 4_000, 4_999, 5_000])
def test_from_any_offset(topic: frazil.Topic, start: int) -> None:
    assert read(topic, start) == list(range(start, 5_000))


def test_up_to_any_end(topic: frazil.Topic) -> None:
    assert read(topic, 100, end=200) == list(range(100, 200))
    first = topic.log.first_offset
    assert read(topic, first - 5, end=first) == list(range(first - 5, first))
    assert read(topic, first - 5, end=first + 5) == list(range(first - 5, first + 5))


def test_batches_have_the_topics_own_schema(topic: frazil.Topic) -> None:
    batches = list(topic.read_batches())
    assert {batch.schema for batch in batches} == {batches[-1].schema}


def test_and_on_into_the_live_tail(topic: frazil.Topic) -> None:
    reader = topic.read(2_990, end=5_200, follow=True)
    publisher = threading.Thread(target=publish, args=(topic, 200, 10))
    publisher.start()
    assert [message.offset for message in reader] == list(range(2_990, 5_200))
    publisher.join()


def test_a_time_is_found_in_any_tier(topic: frazil.Topic) -> None:
    times = [(message.offset, message.append_time) for message in topic.read()]
    for offset in (0, 50, 1_234, 3_499, 3_600, 4_999):
        first = next(at for at, time in times if time >= times[offset][1])
        assert next(topic.read(times[offset][1])).offset == first
    assert next(topic.read(times[0][1] - timedelta(days=1))).offset == 0
    assert list(topic.read(times[-1][1] + timedelta(days=1))) == []


def test_what_no_tier_has_is_out_of_range(storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    with pytest.raises(frazil.OffsetOutOfRange, match="has offsets 0 up to 5000, not 5001"):
        topic.read(5_001)
    mover.catalog.drop_table(mover.name(topic).identifier)
    first = topic.log.first_offset
    with pytest.raises(frazil.OffsetOutOfRange, match=f"has offsets {first} up to 5000, not 0"):
        topic.read(0)
    assert read(topic) == list(range(first, 5_000))


def test_segments_removed_under_a_reader(storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    reader = topic.read_batches(0)
    seen = next(reader).num_rows
    publish(topic, 500)
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 5_500)
    assert topic.log.first_offset > 4_900
    assert seen + sum(batch.num_rows for batch in reader) == 5_000


def test_removed_under_a_reader_of_files(storage: frazil.Storage, topic: frazil.Topic, mover: HandMover) -> None:
    first = topic.log.first_offset
    reader = topic.read(first)
    seen = [next(reader).offset for _ in range(60)]
    mover.move(topic)
    remove_what_the_table_has(storage, topic, 5_000)
    assert seen + [message.offset for message in reader] == list(range(first, 5_000))


# --- tables that other engines have changed


def test_other_files_and_orders(topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_payload", "descending")]), [10, 700, 701, 2_500])
    assert read(topic) == list(range(5_000))
    assert read(topic, 1_234, end=1_240) == list(range(1_234, 1_240))


def test_one_file_out_of_order(topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    rewrite(table, rows_of(table, [("_offset", "descending")]), [])
    assert read(topic, 3) == list(range(3, 5_000))


def test_a_double_is_found(topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    table.append(table.scan(row_filter="_offset >= 700 and _offset < 710").to_arrow())
    with pytest.raises(frazil.TableDamaged, match="offset 700 of /shop/orders: offset 700 is there more than once"):
        read(topic)


def test_a_gap_is_found(topic: frazil.Topic, mover: HandMover) -> None:
    mover.table(topic).delete("_offset >= 700 and _offset < 710")
    with pytest.raises(frazil.TableDamaged, match="offsets 700 up to 710 are missing") as caught:
        read(topic)
    assert caught.value.offset == 700
    assert read(topic, 710) == list(range(710, 5_000))


def test_a_missing_file(topic: frazil.Topic, mover: HandMover) -> None:
    """Known by its topic and offset; and when the file is back, the same reader goes on from there."""
    path = _file_of(mover.table(topic), 2_000)
    aside = path.rename(path.with_suffix(".aside"))
    reader = topic.read_batches(0)
    seen: list[int] = []
    with pytest.raises(frazil.TableDamaged, match=path.name) as caught:
        seen.extend(batch.num_rows for batch in reader)
    assert caught.value.offset == sum(seen) < 2_000
    aside.rename(path)
    assert sum(seen) + sum(batch.num_rows for batch in reader) == 5_000


def test_a_corrupt_file(topic: frazil.Topic, mover: HandMover) -> None:
    path = _file_of(mover.table(topic), 2_000)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(frazil.TableDamaged, match=path.name):
        read(topic)
    path.write_bytes(content)
    assert read(topic) == list(range(5_000))


def test_files_compacted_and_removed_under_a_reader(topic: frazil.Topic, mover: HandMover) -> None:
    reader = topic.read_batches(0)
    seen = next(reader).num_rows
    table = mover.table(topic)
    old = [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]
    rewrite(table, rows_of(table, [("_offset", "ascending")]), [1_111])
    for path in old:
        path.unlink()
    assert seen + sum(batch.num_rows for batch in reader) == 5_000


def test_files_removed_between_a_look_at_the_table_and_its_plan(
    topic: frazil.Topic, mover: HandMover, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has the table as it was, and expiry has taken all that it names."""
    old = mover.table(topic)
    first = next(topic.read()).append_time
    rewrite(mover.table(topic), rows_of(old, [("_offset", "ascending")]), [1_111])
    now = mover.table(topic)
    kept = {
        now.current_snapshot().manifest_list,
        *(each.manifest_path for each in now.current_snapshot().manifests(now.io)),
    }
    for snapshot in old.metadata.snapshots:
        for name in {snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(old.io))} - kept:
            Path(name.removeprefix("file://")).unlink(missing_ok=True)
    looks: list[Table] = []
    load = SqlCatalog.load_table

    def stale_at_first(catalog: SqlCatalog, name: str) -> Table:
        looks.append(old if not looks else load(catalog, name))
        return looks[-1]

    monkeypatch.setattr(SqlCatalog, "load_table", stale_at_first)
    for start in (0, first):
        looks.clear()
        assert read(topic, start) == list(range(5_000))
        assert len(looks) > 1


def test_a_catalog_that_goes_away(settings: Settings, topic: frazil.Topic) -> None:
    assert settings.data is not None
    catalog = settings.data / "catalog.db"
    content = catalog.read_bytes()
    reader = topic.read_batches(0)
    catalog.write_bytes(b"not a database" * 100)
    with pytest.raises(frazil.LakeUnavailable, match=r"shop\.orders"):
        next(reader)
    catalog.write_bytes(content)
    assert sum(batch.num_rows for batch in reader) == 5_000


def test_a_new_column_is_null_in_older_rows(storage: frazil.Storage, mover: HandMover) -> None:
    before = pa.schema([pa.field("a", pa.int32())])
    topic = storage.topic("/shop/typed", schema=before)
    topic.publish_many(pa.record_batch({"a": pa.array(range(3_000), pa.int32())}))
    mover.move(topic)
    after = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])
    topic = storage.change_schema("/shop/typed", after)
    for _ in range(40):
        topic.publish_many(pa.record_batch({"a": range(100), "b": ["x"] * 100}, schema=after))
    remove_what_the_table_has(storage, topic, 3_000)
    assert topic.log.first_offset == 3_000
    rows = pa.Table.from_batches(topic.read_batches())
    assert rows.schema.field("a").type == pa.int64()
    assert rows["_offset"].to_pylist() == list(range(7_000))
    assert rows["a"].slice(0, 3_000).to_pylist() == list(range(3_000))
    assert pc.sum(pc.is_null(rows["b"])).as_py() == 3_000


def test_files_older_than_a_column_may_lie_across_newer_ones(storage: frazil.Storage, mover: HandMover) -> None:
    before = pa.schema([pa.field("a", pa.int64())])
    after = pa.schema([*before, pa.field("b", pa.string()), pa.field("c", pa.list_(pa.int64()))])
    topic = storage.topic("/shop/typed", schema=before)
    for count in (50, 10, 40):
        topic.publish_many(pa.record_batch({"a": range(count)}, schema=before))
        mover.move(topic)
    topic = storage.change_schema("/shop/typed", after)
    for count in (4_000, 1):
        topic.publish_many(pa.record_batch({"a": range(count), "b": ["x"] * count, "c": [[1]] * count}, schema=after))
        end = mover.move(topic)
    table = mover.table(topic)
    apart = f"(_offset >= 50 and _offset < 60) or _offset = {end - 1}"
    rows = table.scan(row_filter=apart).to_arrow()
    large = {"b": pa.large_string(), "c": pa.large_list(pa.int64())}  # other engines' Arrow may have larger offsets
    rows = rows.cast(pa.schema([field.with_type(large.get(field.name, field.type)) for field in rows.schema]))
    table.delete(apart)
    table.append(rows)
    history = topic.log.history
    assert history is not None
    found = pa.Table.from_batches(history.batches(OffsetRange(0, end)))
    assert found["_offset"].to_pylist() == list(range(end))
    assert pc.sum(pc.is_null(found["b"])).as_py() == 100


@pytest.mark.parametrize("jump", [-100, 1, 300, 2_500])
def test_a_reader_whose_offset_is_set_goes_on_exactly_there(topic: frazil.Topic, jump: int) -> None:
    """As subscriptions do that take messages which another one has decoded."""
    reader = topic.read_batches(500)
    at = next(reader).column("_offset").to_pylist()[-1] + 1
    reader.offset = at = min(at + jump, 4_900)
    assert [offset for batch in reader for offset in batch.column("_offset").to_pylist()] == list(range(at, 5_000))


def test_partitions_share_a_table(storage: frazil.Storage, mover: HandMover) -> None:
    topics = [storage.topic(f"/shop/clicks-part-{number}") for number in range(2)]
    for topic in topics:
        publish(topic, 2_000)
        mover.move(topic)
        remove_what_the_table_has(storage, topic, 2_000)
    table = mover.table(topics[0])
    rewrite(table, rows_of(table, [("_offset", "ascending"), ("_topic_partition", "descending")]), [999])
    for topic in topics:
        assert topic.log.first_offset > 0
        assert read(topic) == list(range(2_000))


def _file_of(table: Table, offset: int) -> Path:
    (task,) = table.scan(row_filter=f"_offset = {offset}").plan_files()
    return Path(task.file.file_path.removeprefix("file://"))


def test_where_the_table_has_a_row(topic: frazil.Topic, mover: HandMover) -> None:
    history, table = topic.log.history, mover.table(topic)
    assert history is not None
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = history.places([0, 2_000, 3_999, 4_000])
    assert set(found) == {0, 2_000, 3_999}, "what is in the log alone has no place in the table"
    for offset, place in found.items():
        assert place == (snapshot.snapshot_id, f"file://{_file_of(table, offset)}", snapshot.sequence_number)
    assert history.places([4_500]) == {}
