"""How a table comes to be and grows: partitioned as asked, wider as needed, refused by column where nothing fits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.core.errors import InvalidSettings, TableRefused
from frazil.core.partitioning import Partitioning, parse_partitioning
from frazil.core.rows import ENVELOPE
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.commit.commit import Moved
from frazil.lake.files.writer import DataFileWriter, pieces
from frazil.lake.tables.schema import TableLayout, TableName, partitioned_by
from frazil.lake.tables.store import TableStore

NAME = TableName("shop", "orders")
ROW = pa.schema([("id", pa.int64()), ("text", pa.string())])


def store(folder: Path) -> TableStore:
    settings = Settings(data=folder)
    properties = catalog_properties(settings)
    return TableStore(open_catalog(settings), properties.get("warehouse"), properties)


def table(folder: Path) -> Any:
    return open_catalog(Settings(data=folder)).load_table(NAME.identifier)


def by(*words: str) -> Partitioning:
    return Partitioning("topics./shop/orders.partitioning", parse_partitioning(words))


@pytest.mark.parametrize(
    ("stored", "words", "expected"),
    [
        (ENVELOPE, None, ["day(_publish_time)"]),
        (pa.schema([ENVELOPE.field("_append_time"), ("n", pa.int64())]), None, ["day(_append_time)"]),
        (ENVELOPE, (), []),
        (
            ENVELOPE,
            ("hour(_append_time)", "bucket[4](_key)", "_producer"),
            ["hour(_append_time)", "bucket[4](_key)", "_producer"],
        ),
    ],
)
def test_a_table_is_partitioned_as_asked_or_as_usual(
    tmp_path: Path, stored: pa.Schema, words: tuple[str, ...] | None, expected: list[str]
) -> None:
    store(tmp_path).ensure(NAME, stored, None if words is None else by(*words))
    assert [str(field) for field in partitioned_by(table(tmp_path))] == expected


def test_a_column_that_is_not_there_or_does_not_do_is_named_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"^topics\./shop/orders\.partitioning: there is no column nothing"):
        store(tmp_path).ensure(NAME, ENVELOPE, by("nothing"))
    with pytest.raises(InvalidSettings, match=r"day\(_producer\) does not work on a string"):
        store(tmp_path).ensure(NAME, ENVELOPE, by("day(_producer)"))


def test_a_table_that_is_there_keeps_its_partitioning_and_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(tmp_path).ensure(NAME, ENVELOPE)
    tables = store(tmp_path)
    with caplog.at_level(logging.WARNING, "frazil.lake"):
        for _ in range(3):
            tables.ensure(NAME, ENVELOPE, by("bucket[4](_key)"))
            tables.forget(NAME)
        tables.ensure(NAME, ENVELOPE, by("day(_publish_time)"))
    (told,) = caplog.messages
    assert "is partitioned by [day(_publish_time)] already and stays so, not by [bucket[4](_key)]" in told
    assert [str(field) for field in partitioned_by(table(tmp_path))] == ["day(_publish_time)"]


def test_a_type_grows_with_the_topic(tmp_path: Path) -> None:
    def stored(kind: pa.DataType) -> pa.Schema:
        return pa.schema([ENVELOPE.field("_append_time"), ("n", kind)])

    tables = store(tmp_path)
    for kind, expected in ((pa.int32(), "int"), (pa.int64(), "long"), (pa.int32(), "long")):
        tables.ensure(NAME, stored(kind))
        assert str(table(tmp_path).schema().find_type("n")) == expected
    with pytest.raises(TableRefused, match=r"column n of shop\.orders is long, and the rows have string"):
        tables.ensure(NAME, stored(pa.string()))


def test_a_column_that_may_not_be_null_is_not_left_out(tmp_path: Path) -> None:
    tables = store(tmp_path)
    tables.ensure(NAME, ENVELOPE)
    with pytest.raises(TableRefused, match=r"column _offset of shop\.orders may not be null"):
        tables.ensure_result(NAME, TableLayout(pa.schema([("_payload", pa.binary())])))


def test_metadata_for_tasks_has_nothing_of_the_past(tmp_path: Path) -> None:
    tables = store(tmp_path)
    tables.ensure(NAME, ENVELOPE)
    first = len(tables.metadata_json(NAME))
    for end in range(1, 20):
        tables.commit(NAME, [Moved("log", end - 1, end, (), 0, "")], f"move{end}", lambda _: None)
    assert len(table(tmp_path).metadata.model_dump_json()) > 3 * first
    assert len(tables.metadata_json(NAME)) <= first + 10


def test_no_file_has_more_than_what_may_be_gathered_whatever_the_batches_are(tmp_path: Path) -> None:
    """A burst of large rows, a batch larger than the share, and one row larger than it."""
    tables = store(tmp_path)
    tables.ensure_result(NAME, TableLayout(ROW))
    limit = 64 * 1024
    writer = DataFileWriter(tables.files_of(NAME), limit)
    sizes = [*[10] * 5_000, *[8_000] * 100, 200_000, *[10] * 100]
    rows = pa.record_batch([list(range(len(sizes))), ["x" * size for size in sizes]], schema=ROW)
    for start in (0, 100, 4_000):
        end = {0: 100, 100: 4_000, 4_000: len(sizes)}[start]
        writer.add(rows.slice(start, end - start))
    files = writer.close()
    assert writer.rows == sum(file.record_count for file in files) == len(sizes)
    assert len(files) > 14
    for file in files:
        low, high = (int.from_bytes(bound[1], "little") for bound in (file.lower_bounds, file.upper_bounds))
        assert rows.slice(low, high - low + 1).nbytes <= limit or file.record_count == 1
    assert len(files) < 40


def test_pieces_join_to_the_whole() -> None:
    rows = pa.record_batch([list(range(100)), ["x" * (n % 10) ** 3 for n in range(100)]], schema=ROW)
    for bytes_max in (1, 500, 10_000, 10**9):
        cut = list(pieces(rows, bytes_max))
        assert pa.Table.from_batches(cut).combine_chunks().to_batches()[0].equals(rows)
        assert all(piece.nbytes <= bytes_max or piece.num_rows == 1 for piece in cut)
    assert list(pieces(rows.slice(0, 0), 10)) == []
