"""That all readers of a topic have the same rows, or refuse them for the same reason."""

from __future__ import annotations

from collections.abc import Container

import pytest
from each_reader import FROM_MESSAGES, Place, Readers, Rows
from topic_history import History

import frazil
from frazil.core.offsets import OffsetRange


def check(history: History) -> Rows | None:
    """What readers refuse is refused by SQL with the same error, and by the Spark source. Else all have the same."""
    readers = Readers(history)
    refusals = readers.table_refusals()
    rows: Rows | None = None
    try:
        rows = readers.owner()
    except frazil.FrazilError as error:
        refusals.append(error)
    if refusals:
        with pytest.raises(frazil.FrazilError) as refused:
            readers.sql()
        assert type(refused.value) in [type(error) for error in refusals]
        check_source_refuses(readers, rows)
        return None
    assert rows is not None
    asked = readers.sql()
    assert asked == {place: row for place, row in rows.items() if place in asked or place not in readers.accepted()}
    check_source(readers, rows, asked)
    held = readers.held()
    moved = {
        place: row
        for place, row in rows.items()
        if any(one.start <= place[1] < one.end for one in held.get(place[0], []))
    }
    if held:
        check_without_owner(readers, rows, held)
        assert readers.pyiceberg() == moved
        assert readers.duckdb() in (moved, None)
    return asked


def check_without_owner(readers: Readers, rows: Rows, held: dict[int, list[OffsetRange]]) -> None:
    """Table and objects have these rows; columns that the table lacks yet are left out."""
    found, uploaded = readers.without_owner(), readers.uploaded()

    def within(place: tuple[int, int], ranges: dict[int, list[OffsetRange]]) -> bool:
        return any(one.start <= place[1] < one.end for one in ranges.get(place[0], []))

    moved = [row for place, row in rows.items() if within(place, held)]
    known = {name for row in [*moved, *found.values()] for name, value in row.items() if value is not None}
    assert found == {
        place: {name: value if name in known else None for name, value in row.items()}
        for place, row in rows.items()
        if place[0] in held and (within(place, held) or within(place, uploaded))
    }


def check_source(readers: Readers, rows: Rows, asked: Rows) -> None:
    schema = readers.spark_schema()
    if schema is None:
        return
    found = readers.spark_batch(schema)
    assert found == in_source(rows, found.keys() | asked.keys())
    assert found == readers.spark_stream(schema, len(rows))


def check_source_refuses(readers: Readers, rows: Rows | None) -> None:
    """Where the table is refused, the source refuses as well, unless it reads all rows from the log."""
    schema = readers.spark_schema()
    if schema is None:
        return
    try:
        found = readers.spark_batch(schema)
    except frazil.FrazilError:
        return
    assert rows is not None, "read what the topic's reader refuses"
    assert found == in_source(rows, rows.keys())


def in_source(rows: Rows, places: Container[Place]) -> Rows:
    """Rows with the columns that the Spark source gives."""
    return {
        place: {name: value for name, value in row.items() if name in FROM_MESSAGES or "_payload" not in row}
        for place, row in rows.items()
        if place in places
    }
