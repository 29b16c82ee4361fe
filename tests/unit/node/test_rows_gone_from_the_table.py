"""Rows that are gone from a table: no reader begins later without a word, until a person has accepted the gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tiers import NAME, rewrite, rows_of

import frazil
from frazil.core.settings import Settings
from frazil.lake.tables.accept import accept
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import open_view
from frazil.node.verify.proofs import prove
from frazil.pipeline.source.options import parse_options
from frazil.pipeline.source.source import BatchSourceReader
from parts.moving import HandMover

Read = Callable[[object], list[int]]


@pytest.fixture
def embedded(topic: frazil.Topic) -> Read:
    return lambda start: [message.offset for message in topic.read(start)]  # type: ignore[arg-type]


@pytest.fixture
def read_only(topic: frazil.Topic, settings: Settings) -> Iterator[Read]:
    with frazil.open_read_only(settings) as node:
        yield lambda start: [message.offset for message in node.topic(NAME).read(start)]  # type: ignore[arg-type]


@pytest.fixture
def spark(topic: frazil.Topic, settings: Settings) -> Read:
    def read(start: object) -> list[int]:
        bound = {} if not isinstance(start, int) else {"startingOffsets": f'{{"{NAME}": {{"0": {start}}}}}'}
        options = parse_options({"subscribe": NAME, "data": str(settings.data), **bound})
        reader = BatchSourceReader(options, StructType([StructField("offset", LongType())]))
        batches = (batch for task in reader.partitions() for batch in reader.read(task))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    return read


@pytest.fixture(params=["embedded", "read_only", "spark"])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("gone", ["_offset < 1000", "_offset < 2500", "_offset >= 0"])
def test_no_reader_begins_later_without_a_word(topic: frazil.Topic, mover: HandMover, read: Read, gone: str) -> None:
    mover.table(topic).delete(gone)
    for start in ("earliest", 0, 3):
        with pytest.raises((frazil.TableDamaged, frazil.RowsMissing)) as refused:
            read(start)
        assert refused.value.fields.get("offset", refused.value.fields.get("start")) in (0, 3)


@pytest.mark.parametrize("face", ["embedded", "read_only"])
def test_nor_from_a_time(request: pytest.FixtureRequest, topic: frazil.Topic, mover: HandMover, face: str) -> None:
    read: Read = request.getfixturevalue(face)
    later = next(topic.read(2_000)).append_time
    mover.table(topic).delete("_offset < 1000")
    with pytest.raises(frazil.TableDamaged, match="offset 999 is missing"):
        read(datetime(1970, 1, 2, tzinfo=timezone.utc))
    assert 2_000 in read(later), "a time whose row and the one before it are there"


def test_nor_at_the_end_from_a_time_after_all_rows(
    topic: frazil.Topic, settings: Settings, mover: HandMover, read_only: Read
) -> None:
    late = next(topic.read(4_999)).append_time + timedelta(days=1)
    assert read_only(late) == []
    mover.table(topic).delete("_offset >= 3000")
    with pytest.raises(frazil.TableDamaged, match="offset 3999 is missing"):
        read_only(late)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_person_accepts_what_was_deleted(
    topic: frazil.Topic, settings: Settings, mover: HandMover, read: Read, compacted: bool
) -> None:
    """Whole files and rows within them; readers go on behind, also where a compaction wrote one file over the gap."""
    mover.table(topic).delete("_offset < 1500 or (_offset >= 2000 and _offset < 2010) or _offset = 3000")
    with pytest.raises((frazil.TableDamaged, frazil.RowsMissing)):
        read("earliest")
    accept(mover.catalog, mover.name(topic), topic.log.log_id, topic.log.first_offset, "a person")
    if compacted:
        table = mover.table(topic)
        rewrite(table, rows_of(table, [("_offset", "ascending")]), [])
    gone = {*range(1_500), *range(2_000, 2_010), 3_000}
    found = read("earliest")
    assert found == [offset for offset in range(found[-1] + 1) if offset not in gone]
    assert found[-1] in (3_999, 4_999)
    (proof,) = prove(settings, NAME, lambda _: lambda _: None)
    assert proof.proven
    assert [(gap.start, gap.end) for gap in proof.gaps] == [(0, 1_500), (2_000, 2_010), (3_000, 3_001)]


@pytest.mark.parametrize("face", ["embedded", "spark"])
def test_an_accepted_gap_hides_no_row_that_the_log_has(
    request: pytest.FixtureRequest, topic: frazil.Topic, mover: HandMover, settings: Settings, face: str
) -> None:
    """They may be other rows than those that were accepted: a log that was cut gives out the same offsets again."""
    read: Read = request.getfixturevalue(face)
    held = topic.log.first_offset
    mover.table(topic).delete(f"_offset >= {held - 10} and _offset < 3990")
    accept(mover.catalog, mover.name(topic), topic.log.log_id, held, "a person")
    wanted = [*range(held - 10), *range(held, 5_000)]
    assert read("earliest") == wanted
    with open_view(settings) as logs, SqlSession(settings, logs) as session:
        answer = session.run("select _offset from shop.orders order by 1")
        assert [offset for batch in answer.batches for offset in batch.column(0).to_pylist()] == wanted
    (proof,) = prove(settings, NAME, lambda _: lambda _: None)
    assert (proof.proven, proof.in_log) == (True, 1_000 + 3_990 - held)
