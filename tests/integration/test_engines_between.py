"""Another engine works on the table between two moves, and between a move's look at the table and its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType
from parts.engines import World, world

pytestmark = pytest.mark.timeout(240)

CHANGES = {
    "compaction": ["{call}rewrite_data_files({name}, options => map('rewrite-all', 'true'))"],
    "manifests are written anew": ["{call}rewrite_manifests({name})"],
    "copy-on-write delete": ["DELETE FROM {table} WHERE _offset = 3"],
    "merge-on-read delete": [
        "ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        "DELETE FROM {table} WHERE _offset IN (5, 8)",
    ],
    "expiry": ["{call}expire_snapshots({name}, older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"],
    "a column more": ["ALTER TABLE {table} ADD COLUMN note string"],
    "a column renamed": ["ALTER TABLE {table} RENAME COLUMN _key TO their_key"],
    "a column dropped": ["ALTER TABLE {table} DROP COLUMN _producer"],
    "a partition field more": ["ALTER TABLE {table} ADD PARTITION FIELD bucket(4, _offset)"],
    "another partition field": [
        "ALTER TABLE {table} DROP PARTITION FIELD bucket(4, _offset)",
        "ALTER TABLE {table} ADD PARTITION FIELD truncate(10, _offset)",
    ],
    "no partition field": [
        "ALTER TABLE {table} DROP PARTITION FIELD truncate(10, _offset)",
        "ALTER TABLE {table} DROP PARTITION FIELD `_publish_time_day`",
    ],
    "compaction after all that": ["{call}rewrite_data_files({name}, options => map('rewrite-all', 'true'))"],
}
DELETED = {"copy-on-write delete": {3}, "merge-on-read delete": {5, 8}}


@pytest.fixture
def both(
    request: pytest.FixtureRequest, lake_settings: Callable[[str], Settings], spark: SparkSession
) -> Iterator[World]:
    with world(lake_settings(request.param), spark) as found:
        yield found


@pytest.fixture
def with_history(lake_settings: Callable[[str], Settings], spark: SparkSession) -> Iterator[World]:
    """Nessie keeps only the newest snapshot, so there is none to roll back to."""
    with world(lake_settings("sqlite"), spark) as found:
        yield found


@pytest.mark.parametrize(
    ("both", "when"),
    [
        ("sqlite", "during"),
        pytest.param("sqlite", "between", marks=pytest.mark.long),
        pytest.param("rest", "between", marks=pytest.mark.long),
        pytest.param("rest", "during", marks=pytest.mark.long),
    ],
    indirect=["both"],
)
def test_whatever_another_engine_does_each_row_is_there_once(both: World, when: str) -> None:
    end = 0
    for _ in range(3):
        end = moved_on(both, end)
    deleted: set[int] = set()
    for what, statements in CHANGES.items():
        if what == "expiry" and both.settings.catalog.type is CatalogType.REST:
            continue  # Nessie keeps only the newest snapshot, and forbids it

        def change(statements: list[str] = statements) -> None:
            for statement in statements:
                both.sql(statement)

        if when == "during":
            both.before_commit = change
        else:
            change()
        end = moved_on(both, end)
        assert both.before_commit is None, what
        deleted |= DELETED.get(what, set())
        assert both.offsets() == sorted(set(range(end)) - deleted), what
        for offset in (end - 1, end - 4, 0):  # a file that stands in the wrong partition is not found by its rows
            assert both.table().scan(row_filter=f"_offset == {offset}").to_arrow().num_rows == 1, what
        assert both.sql(f"SELECT 1 FROM {{table}} WHERE _offset IN ({end - 1}, {end - 4}, 0)").num_rows == 3, what
    assert both.by_pyiceberg() == both.by_spark()


def moved_on(both: World, end: int) -> int:
    both.publish("orders", 5)
    assert both.moved() == 5
    return end + 5


@pytest.mark.parametrize("when", [pytest.param("between", marks=pytest.mark.long), "during"])
def test_a_rollback_is_refused_with_its_reason(with_history: World, when: str) -> None:
    both = with_history
    moved_on(both, 0)
    first = both.snapshot_id()
    moved_on(both, 5)

    def roll_back() -> None:
        both.sql(f"{{call}}rollback_to_snapshot({{name}}, snapshot_id => {first})")

    both.publish("orders", 5)
    if when == "during":
        both.before_commit = roll_back
    else:
        roll_back()
    for _ in range(2):
        (topic,) = both.move().topics.values()
        assert topic.error is not None
        assert "rolled back" in topic.error
        assert "frazil pipeline accept" in topic.error
    assert both.offsets() == list(range(5))


@pytest.mark.parametrize("when", [pytest.param("between", marks=pytest.mark.long), "during"])
def test_a_format_that_cannot_be_written_is_refused_with_its_reason(with_history: World, when: str) -> None:
    both = with_history
    moved_on(both, 0)

    def upgrade() -> None:
        both.sql("ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')")

    both.publish("orders", 5)
    if when == "during":
        both.before_commit = upgrade
    else:
        upgrade()
    for _ in range(2):
        report = both.move()
    assert "upgraded to Iceberg format 3" in str(report.topics[f"/{both.namespace}/orders"].error)
    assert both.offsets() == list(range(5))
