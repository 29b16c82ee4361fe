"""Topics of any name that is allowed have their table, and values of any length their place in it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.settings import make_settings
from frazil.core.settings.lake import CatalogType
from frazil.lake.catalogs.table_names import spark_name
from frazil.lake.files.locations import NAME_BYTES_MAX, short_path
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.schema import TableName
from parts.in_process import MoverHere

ORDERS = "/shop/orders"


@pytest.mark.parametrize("namespace", ["shop.eu", "shop.eu.north"])
def test_a_namespace_with_dots_is_listed_like_any_other(tmp_path: Path, namespace: str) -> None:
    settings, dotted = make_settings({"data": tmp_path / "data"}), f"/{namespace}/orders"
    with frazil.open(settings) as storage:
        for topic in (ORDERS, dotted):
            storage.topic(topic).publish("row")
        assert set(MoverHere(settings, storage).errors().values()) == {None}
    assert sorted(TableInspector(settings).names()) == sorted(
        [TableName("shop", "orders"), TableName(namespace, "orders")]
    )
    with frazil.open_read_only(settings) as node:
        assert sorted(map(str, node.topics())) == sorted([ORDERS, dotted])
        assert node.topic(dotted).stats().end == 1


@pytest.mark.parametrize("namespace", [".hidden", "a..b", "shop."])
def test_a_namespace_that_no_catalog_has_is_refused(namespace: str) -> None:
    with frazil.open(None) as storage:
        with pytest.raises(frazil.InvalidName, match="namespace"):
            storage.topic(f"/{namespace}/orders")
        assert list(storage.topics()) == []


@pytest.mark.parametrize("topic", ["orders.v1", ".orders", "orders..v1", "-", "_", "part-0", "a" * 128])
def test_a_topic_of_any_allowed_name_is_moved_and_listed(tmp_path: Path, topic: str) -> None:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        storage.topic(f"/shop/{topic}").publish("row")
        assert MoverHere(settings, storage).errors() == {f"/shop/{topic}": None}
    assert TableInspector(settings).names() == [TableName("shop", topic)]


def test_spark_is_told_the_levels_that_its_catalog_sees() -> None:
    name = TableName("shop.eu", "orders")
    assert spark_name(name, CatalogType.SQL) == "`shop`.`eu`.`orders`"
    assert spark_name(name, CatalogType.REST) == "`shop.eu`.`orders`"


@pytest.mark.parametrize("sign", "#?%")
def test_a_folder_that_no_table_can_be_in_is_refused_when_it_is_opened(tmp_path: Path, sign: str) -> None:
    odd = tmp_path / f"data{sign}41"
    with pytest.raises(frazil.InvalidSettings, match=r"data: .* has a ."):
        frazil.open(odd)
    with pytest.raises(frazil.InvalidSettings, match=r"object_store\.path: "):
        frazil.open({"data": str(tmp_path / "data"), "object_store": {"path": str(odd)}})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_such_a_name_may_hold_a_log_whose_tables_are_elsewhere(tmp_path: Path) -> None:
    lake = {"catalog": {"uri": f"sqlite:///{tmp_path}/catalog.db"}, "object_store": {"path": tmp_path / "warehouse"}}
    settings = make_settings({"data": tmp_path / "data#1", **lake})
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish("row")
        assert MoverHere(settings, storage).errors() == {ORDERS: None}


@pytest.mark.parametrize("storage_paths", ["false", "true"])
def test_a_key_of_any_length_is_moved_in_a_table_that_is_partitioned_by_keys(
    tmp_path: Path, storage_paths: str
) -> None:
    rules = {"topics": {ORDERS: {"partitioning": ["_key", "truncate[300](_producer)"]}}}
    settings = make_settings({"data": tmp_path / "data", **rules})
    keys = [b"short", b"k" * 400, b"k" * 399 + b"l", b"k" * 100_000]
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage)
        storage.topic(ORDERS).publish("first", key="short")
        assert here.errors() == {ORDERS: None}
        with here.table(ORDERS).transaction() as transaction:
            transaction.set_properties({"write.object-storage.enabled": storage_paths})
        here.mover.forget()
        rows = {"_payload": keys, "_key": keys, "_producer": ["p" * 300] * len(keys)}
        storage.topic(ORDERS).publish_many(pa.record_batch(rows))
        assert here.errors() == {ORDERS: None}
        found = here.rows(ORDERS, "_key", "_payload")
    assert [row["_key"] for row in found] == [b"short", *keys]
    files = [task.file.file_path for task in here.table(ORDERS).scan().plan_files()]
    assert max(len(part) for path in files for part in path.split("/")) < 255
    assert len(set(files)) == len(keys) + 1
    filtered = here.table(ORDERS).scan(row_filter=f"_producer = '{'p' * 300}'").to_arrow()
    assert filtered.num_rows == len(keys)


def test_short_names_stay_as_they_are_and_long_ones_differ() -> None:
    assert short_path("_key=a/day=2026-01-02") == "_key=a/day=2026-01-02"
    one, two = short_path("_key=" + "a" * 400), short_path("_key=" + "a" * 399 + "b")
    assert one != two
    assert len(one) <= NAME_BYTES_MAX
    assert len(short_path("/".join(f"{number}=" + "a" * 190 for number in range(9)))) <= NAME_BYTES_MAX


def test_topics_that_differ_in_case_alone_cannot_be_side_by_side(tmp_path: Path) -> None:
    with frazil.open(tmp_path / "data") as storage:
        storage.topic(ORDERS)
        for other in ("/shop/Orders", "/Shop/orders", "/shop/ORDERS-part-0"):
            with pytest.raises(frazil.InvalidName, match="in case alone"):
                storage.topic(other)
        assert list(map(str, storage.topics())) == [ORDERS]
        storage.delete_topic(ORDERS)
        storage.topic("/shop/Orders")
    with frazil.open(tmp_path / "data") as storage:
        with pytest.raises(frazil.InvalidName, match="/shop/Orders"):
            storage.topic(ORDERS)
        storage.create_partitions("/shop/split", 3)
        with pytest.raises(frazil.InvalidName, match="/shop/split-part-0"):
            storage.topic("/shop/Split")
