"""A table that is dropped or recreated while a reader is in it: the rest of its rows is missed, and never skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.core.errors import OffsetOutOfRange
from frazil.core.settings import make_settings
from parts.moving import Floor, HandMover, open_guarded

ROWS = 60


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_reader_never_skips_the_rows_of_a_dropped_table(tmp_path: Path, is_recreated: bool) -> None:
    settings = make_settings(
        {
            "data": str(tmp_path / "data"),
            "wal": {"max_file_size": 65_536, "cache_bytes": 0, "retention": {"bytes": 1}},
            "reader": {"max_concurrent_reads": 1, "prefetch_size": 1},
        }
    )
    floor = Floor()
    with open_guarded(settings, floor) as storage:
        topic = storage.topic("/default/orders")
        for number in range(ROWS):
            topic.publish(b"%d" % number + b"x" * 20_000)
        mover = HandMover(settings)
        mover.move(topic, files=10)
        floor.ends[topic.log.log_id] = ROWS
        storage.maintain()
        assert 0 < topic.log.first_offset < ROWS
        reader = topic.read_batches("earliest")
        offsets = next(reader).column(0).to_pylist()
        mover.catalog.purge_table(mover.table(topic).name())
        if is_recreated:
            mover.end(topic)
        with pytest.raises(OffsetOutOfRange):
            offsets.extend(offset for batch in reader for offset in batch.column(0).to_pylist())
        assert offsets == list(range(len(offsets)))
