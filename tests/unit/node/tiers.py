"""What the tests of this folder share."""

from __future__ import annotations

import itertools

import pyarrow as pa
from pyiceberg.table import Table

import frazil
from frazil.core.settings import RetentionSettings
from parts.moving import Floor

PAYLOAD = b"x" * 100
NAME = "/shop/orders"
FLOOR = Floor()
"""The only guard of the storages of this folder. It knows logs by their ids, so tests can share it."""


def payload(offset: int) -> bytes:
    return f"{offset}:".encode() + PAYLOAD


def publish(topic: frazil.Topic, count: int, each: int = 50) -> None:
    end = topic.stats().end
    for start in range(end, end + count, each):
        topic.publish_many([payload(offset) for offset in range(start, min(start + each, end + count))])


def remove_what_the_table_has(storage: frazil.Storage, topic: frazil.Topic, end: int) -> None:
    FLOOR.ends[topic.log.log_id] = end
    storage.set_retention(topic.name, RetentionSettings(bytes=1))
    storage.maintain()


def rewrite(table: Table, rows: pa.Table, cuts: list[int]) -> None:
    """Replace all rows by these, in this order and in files cut here: as a compaction leaves them."""
    bounds = [0, *cuts, rows.num_rows]
    with table.transaction() as change:
        change.delete("_offset >= 0")
        for low, high in itertools.pairwise(bounds):
            change.append(rows.slice(low, high - low))


def rows_of(table: Table, order: list[tuple[str, str]]) -> pa.Table:
    return table.scan().to_arrow().sort_by(order)
