"""A REST catalog behind a proxy that drops, delays and answers wrongly: nothing is lost, doubled or deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from lakes import Lake

from frazil.core.settings import Settings, make_settings
from parts.nessie import WAREHOUSE, Nessie
from parts.processes import pause
from parts.proxy import FAULTS, Proxy, proxy_before
from parts.s3 import S3


@pytest.fixture
def proxy(rest_catalog: Nessie) -> Iterator[Proxy]:
    with proxy_before(rest_catalog.port) as proxy:
        yield proxy


@pytest.fixture
def lake(proxy: Proxy, s3: S3) -> Lake:
    catalog = {"type": "rest", "uri": f"http://127.0.0.1:{proxy.port}/iceberg/"}
    lake = Lake("rest", make_settings({"catalog": catalog, "object_store": s3.settings(WAREHOUSE)}))
    lake.move(0, 5)
    proxy.commits = 0
    return lake


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_or_after_the_commit_loses_and_doubles_nothing(lake: Lake, proxy: Proxy, fault: str) -> None:
    moved = lake.written(5, 10)
    proxy.faults = [fault] * 2
    assert lake.commit(moved).mine == (moved,)
    assert proxy.commits == (1 if fault.endswith("after") else 3)
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


def test_a_slow_catalog_is_waited_for(lake: Lake, proxy: Proxy) -> None:
    proxy.delay_s = 1.0
    lake.move(5, 10)
    assert proxy.commits == 1
    assert lake.offsets() == list(range(10))


def test_a_catalog_too_slow_is_asked_again_and_its_late_commit_lands_once(
    lake: Lake, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request is given up; the proxy passes it on all the same, while we look and try again."""
    monkeypatch.setattr("frazil.lake.catalogs.rest.ANSWER_S_MAX", 2)
    moved = lake.written(5, 10)
    proxy.delay_s = 3.0

    def back_to_normal(attempt: int) -> None:
        proxy.delay_s = 0.0

    lake.on_wait = back_to_normal
    assert lake.commit(moved).mine == (moved,)
    pause(2.0)  # for the one that was held to be passed on
    assert proxy.commits == 2
    assert lake.exists(moved)
    assert lake.offsets() == list(range(10))


def test_the_catalog_in_another_spelling_is_the_same(lake_settings: Callable[[str], Settings]) -> None:
    """The sections under `storage` open the same lake."""
    plain = lake_settings("rest").model_dump()
    sections = {"catalog": plain["catalog"], "object_store": plain["object_store"]}
    wrapped = make_settings({"storage": {"type": "iceberg", "iceberg_config": sections}})
    lake = Lake("rest", wrapped)
    lake.move(0, 3)
    assert lake.offsets() == [0, 1, 2]
