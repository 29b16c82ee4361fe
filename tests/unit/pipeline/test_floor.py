"""Local segments go only when the table is known to hold them."""

from __future__ import annotations

from pathlib import Path

import frazil
from frazil.core.json_file import write_json
from frazil.core.topic_settings import TopicSettings
from frazil.topics.floor import TableFloor, status_path

KIB = 1024


def test_nothing_goes_before_the_mover_said_that_the_table_has_it(tmp_path: Path) -> None:
    wal = frazil.WalSettings(max_file_size=64 * KIB, retention=frazil.RetentionSettings(bytes=1))
    settings = frazil.Settings(data=tmp_path, wal=wal)
    with frazil.open(settings) as storage:
        storage.floor_of = TableFloor(settings)
        topic = storage.topic("/default/orders")
        for _ in range(60):
            topic.publish(bytes(4 * KIB))
        storage.maintain()
        assert topic.stats().first_offset == 0

        def tell(log_id: str, table_end: int) -> None:
            write_json(status_path(settings), {"topics": {topic.name: {"log_id": log_id, "table_end": table_end}}})

        tell("another log of the same name", 60)
        storage.maintain()
        assert topic.stats().first_offset == 0
        tell(topic.log.log_id, 30)
        storage.maintain()
        assert 0 < topic.stats().first_offset <= 30


def test_a_topic_that_is_not_moved_waits_for_no_table(tmp_path: Path) -> None:
    wal = frazil.WalSettings(max_file_size=64 * KIB, retention=frazil.RetentionSettings(bytes=1))
    settings = frazil.Settings(data=tmp_path, wal=wal, topics={"/tmp/*": TopicSettings(enabled=False)})
    with frazil.open(settings) as storage:
        storage.floor_of = TableFloor(settings)
        topics = [storage.topic(name) for name in ("/tmp/a-part-0", "/default/a")]
        for _ in range(60):
            for topic in topics:
                topic.publish(bytes(4 * KIB))
        storage.maintain()
        assert [topic.stats().first_offset > 0 for topic in topics] == [True, False]
