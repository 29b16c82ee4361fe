"""What maintenance asks before it does anything: what would go, and what forbids it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.errors import InvalidInput, InvalidSettings, TableNotFound, TableRefused, TableRolledBack
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.spark import packages, spark_options
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.schema import TableName
from frazil.pipeline.maintenance.maintenance_pass import Round
from frazil.pipeline.maintenance.procedures import NOT_SHOWN, check_expiry_age, orphan_before_ms
from frazil.testing import FakeClock
from parts.moving import HandMover

FUTURE_MS = 2**42


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path / "data", "maintenance": {"files_min": 3}})


@pytest.fixture
def mover(settings: Settings) -> HandMover:
    return HandMover(settings)


@pytest.fixture
def topic(settings: Settings, mover: HandMover) -> Iterator[frazil.Topic]:
    """Four commits of ten rows."""
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/orders")
        for _ in range(4):
            topic.publish_many([b"tea"] * 10)
            mover.move(topic)
        yield topic


def test_a_table_is_summed_up(settings: Settings, topic: frazil.Topic) -> None:
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    found = inspector.summary(name)
    assert (found.table, found.rows, found.files, found.snapshots) == ("shop.orders", 40, 4, 5)
    assert found.ends == {topic.log.log_id: 40}
    described = inspector.description(name)
    assert [each["small_files"] for each in described["partitions"]] == [4]
    assert described["partitioning"] == "[day(_publish_time)]"


def test_a_hidden_table_is_not_loaded(settings: Settings, topic: frazil.Topic) -> None:
    """It cannot be read, and the error would tell of it."""
    assert settings.data is not None
    for file in settings.data.rglob("*.metadata.json"):
        file.unlink()
    inspector = TableInspector(settings)
    with pytest.raises(frazil.FrazilError, match="shop"):
        inspector.names()
    assert inspector.names(shown=lambda name: name != TableName("shop", "orders")) == []


def test_nothing_is_made_by_a_look(settings: Settings) -> None:
    assert TableInspector(settings).names() == []
    assert settings.data is not None
    assert not settings.data.exists()


def test_a_table_that_is_not_there(settings: Settings, topic: frazil.Topic) -> None:
    with pytest.raises(TableNotFound, match=r"there is no table shop\.teapots"):
        TableInspector(settings).names("/shop/teapots")


def test_small_files_are_joined_when_there_are_enough(settings: Settings, topic: frazil.Topic) -> None:
    (name,) = TableInspector(settings).names()
    assert TableInspector(settings).compaction(name).files == 4
    patient = settings.model_copy(update={"maintenance": settings.maintenance.model_copy(update={"files_min": 5})})
    assert TableInspector(patient).compaction(name).files == 0


def test_the_last_snapshots_and_young_ones_stay(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    ids = [snapshot.snapshot_id for snapshot in mover.table(topic).snapshots()]
    assert inspector.expiring(name, FUTURE_MS, 2) == ids[:3]
    assert inspector.expiring(name, FUTURE_MS, 1) == ids[:4]
    assert inspector.expiring(name, 0, 1) == []


def test_too_many_snapshots_go_although_they_are_young(
    settings: Settings, topic: frazil.Topic, mover: HandMover
) -> None:
    few = settings.model_copy(update={"maintenance": settings.maintenance.model_copy(update={"snapshots_max": 3})})
    inspector = TableInspector(few)
    (name,) = inspector.names()
    snapshots = mover.table(topic).snapshots()
    hour_ms, last_ms = 3_600_000, snapshots[-1].timestamp_ms
    assert inspector.expiring(name, inspector.expires_before_ms(name, last_ms + hour_ms), 1) != []
    later_ms = last_ms + 2 * hour_ms
    assert inspector.expires_before_ms(name, later_ms) == snapshots[-3].timestamp_ms
    assert len(inspector.expiring(name, inspector.expires_before_ms(name, later_ms), 1)) <= 2
    assert TableInspector(settings).expires_before_ms(name, later_ms) == later_ms - 120 * hour_ms
    assert inspector.expiring(name, inspector.expires_before_ms(name, snapshots[0].timestamp_ms + hour_ms), 1) == []


def test_a_round_does_what_is_due(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    found = Round(inspector, FUTURE_MS, None, 2).due(name)
    assert (found.files, found.snapshots, found.orphans) == (4, 3, False)
    now_ms = mover.table(topic).snapshots()[-1].timestamp_ms
    assert Round(inspector, now_ms, 0, 2).due(name).orphans
    with mover.table(topic).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    found = Round(inspector, FUTURE_MS, 0, 2).due(name)
    assert (found.files, found.snapshots, found.orphans) == (4, 0, False), "its catalog keeps the rest"
    patient = settings.model_copy(update={"maintenance": settings.maintenance.model_copy(update={"files_min": 5})})
    assert not Round(TableInspector(patient), FUTURE_MS, 0, 2).due(name)
    gone = Round(inspector, FUTURE_MS, 0, 2).due(TableName("shop", "teapots"))
    assert not gone
    assert gone.error is not None


def test_a_snapshot_with_a_name_stays(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    table = mover.table(topic)
    kept = table.snapshots()[1].snapshot_id
    table.manage_snapshots().create_tag(kept, "audit").commit()
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    assert kept not in inspector.expiring(name, FUTURE_MS, 1)


def test_a_table_that_was_rolled_back_is_left_alone(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    """Expiry would remove the only trace of it, and rows would be missing without a word."""
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    inspector.check_tokens(name)
    table = mover.table(topic)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[2].snapshot_id).commit()
    with pytest.raises(TableRolledBack):
        inspector.check_tokens(name)


def test_no_orphans_are_looked_for_where_another_table_lies(
    settings: Settings, topic: frazil.Topic, mover: HandMover
) -> None:
    inspector = TableInspector(settings)
    (name,) = inspector.names()
    inspector.check_alone(name)
    table = mover.table(topic)
    mover.catalog.create_table("shop.inner", table.schema(), location=f"{table.location()}/inner")
    with pytest.raises(TableRefused, match=r"files of shop\.inner are below the table's own location"):
        TableInspector(settings).check_alone(name)


def test_a_name_that_only_begins_alike_is_no_neighbour(
    settings: Settings, topic: frazil.Topic, mover: HandMover
) -> None:
    table = mover.table(topic)
    mover.catalog.create_table("shop.orders2", table.schema(), location=f"{table.location()}2")
    inspector = TableInspector(settings)
    inspector.check_alone(inspector.names("/shop/orders")[0])


def test_a_catalog_may_forbid_to_delete(settings: Settings, topic: frazil.Topic, mover: HandMover) -> None:
    with mover.table(topic).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    inspector = TableInspector(settings)
    with pytest.raises(TableRefused, match=r"gc\.enabled is false"):
        inspector.check_may_delete(inspector.names()[0])


def test_ages_below_what_is_safe_are_refused(settings: Settings) -> None:
    clock = FakeClock()
    now_ms = clock.now_us() // 1_000
    hour_ms = 3_600_000
    check_expiry_age(None, force=False)
    check_expiry_age(1, force=True)
    check_expiry_age(hour_ms, force=False)
    with pytest.raises(InvalidInput, match="give --force"):
        check_expiry_age(hour_ms - 1, force=False)
    assert orphan_before_ms(settings, clock, None) == now_ms - 72 * hour_ms
    with pytest.raises(InvalidInput, match="at least 24h"):
        orphan_before_ms(settings, clock, 24 * hour_ms - 1)


# --- the catalog in Spark's words


def test_an_embedded_catalog(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path})
    options = spark_options(settings)
    assert options["spark.sql.catalog.frazil.uri"] == f"jdbc:sqlite:{tmp_path}/catalog.db"
    assert options["spark.sql.catalog.frazil.warehouse"] == f"file://{tmp_path}/warehouse"
    assert [each.split(":")[1] for each in packages(settings)] == ["iceberg-spark-runtime-4.1_2.13", "sqlite-jdbc"]


def test_encryption_by_the_store_is_passed_through(tmp_path: Path) -> None:
    """As docs/guides/security.md says."""
    properties = {"s3.sse.type": "kms", "s3.sse.key": "my-key"}
    store = {"type": "s3", "bucket": "b", "region": "x", "properties": properties}
    options = spark_options(make_settings({"data": tmp_path, "object_store": store}))
    assert (
        properties.items()
        <= {name.removeprefix("spark.sql.catalog.frazil."): options[name] for name in options}.items()
    )


def test_secrets_have_names_that_spark_hides() -> None:
    secret = "a-s3cret-that-nobody-prints"
    lakes = [
        {"catalog": {"uri": f"postgresql+psycopg2://me:{secret}@db.example/lake"}},
        {"catalog": {"type": "rest", "uri": "http://rest.example", "token": secret, "credential": f"me:{secret}"}},
        {"catalog": {"type": "glue"}},
    ]
    store = {"type": "s3", "bucket": "b", "region": "x", "access_key_id": secret, "secret_access_key": secret}
    for lake in lakes:
        options = spark_options(make_settings({**lake, "object_store": store}))
        shown = {name: value for name, value in options.items() if not re.search(NOT_SHOWN, name)}
        assert secret not in str(shown)
        assert secret in str(options)
        assert options["spark.sql.catalog.frazil.client.region"] == "x"


@pytest.mark.parametrize(
    ("sections", "setting"),
    [
        ({"catalog": {"type": "memory"}}, r"catalog\.type"),
        ({"catalog": {"type": "named"}}, r"catalog\.type"),
        ({"catalog": {"uri": "mysql://db/lake"}}, r"catalog\.uri"),
        ({"object_store": {"type": "gcs", "bucket": "b"}}, r"object_store\.type"),
    ],
)
def test_what_spark_cannot_open_is_refused_by_its_setting(sections: dict[str, object], setting: str) -> None:
    with pytest.raises(InvalidSettings, match=setting):
        spark_options(make_settings(sections))
