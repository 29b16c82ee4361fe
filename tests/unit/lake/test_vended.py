"""Credentials that a catalog vends with a table are renewed before they expire, and after a task has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table

import frazil
from frazil.core.settings import make_settings
from frazil.lake.catalogs.credentials import MARGIN_MS, renew_at_ms
from frazil.lake.catalogs.opening import catalog_properties
from frazil.testing import FakeClock
from parts.in_process import MoverHere

TOPIC, HOUR_MS = "/shop/orders", 3_600_000
EXPIRES = "s3.session-token-expires-at-ms"
REVOKED: set[str] = set()
USED: set[str] = set()


class VendedFiles(PyArrowFileIO):
    """Files that open only for a key that was not revoked."""

    def _check(self) -> None:
        if self.properties["key"] in REVOKED:
            raise OSError("403 ExpiredToken")

    def new_input(self, location: str) -> PyArrowFile:
        self._check()
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self._check()
        USED.add(self.properties["key"])
        return super().new_output(location)


class Vending(SqlCatalog):
    """Vends a new key with each table that is loaded, as REST catalogs do. With `lives_ms` it says when it expires."""

    clock: FakeClock
    lives_ms: int | None = None
    loads = 0

    def load_table(self, identifier: Any) -> Table:
        table = super().load_table(identifier)
        self.loads += 1
        more = {"py-io-impl": f"{__name__}.VendedFiles", "key": f"key-{self.loads}"}
        if self.lives_ms is not None:
            more[EXPIRES] = str(self.clock.now_us() // 1_000 + self.lives_ms)
        table.io = VendedFiles({**table.io.properties, **more})
        return table


@pytest.fixture
def vending(tmp_path: Path) -> Vending:
    REVOKED.clear()
    USED.clear()
    settings = make_settings({"data": tmp_path / "data"})
    catalog = Vending("default", **{**catalog_properties(settings), "uri": f"sqlite:///{tmp_path}/catalog.db"})
    catalog.clock = FakeClock()
    return catalog


def test_a_table_is_loaded_anew_before_its_credentials_expire_and_not_before(tmp_path: Path, vending: Vending) -> None:
    settings, vending.lives_ms = make_settings({"data": tmp_path / "data"}), HOUR_MS
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage, clock=vending.clock, catalog=vending)
        storage.topic(TOPIC).publish("one")
        assert here.errors() == {TOPIC: None}
        before = set(USED)
        storage.topic(TOPIC).publish("two")
        assert here.errors() == {TOPIC: None}
        assert before == USED  # the table is remembered with its key
        vending.clock.advance((HOUR_MS - MARGIN_MS) * 1_000)
        REVOKED.update(before)
        storage.topic(TOPIC).publish("three")
        assert here.errors() == {TOPIC: None}
        assert len(USED - before) == 1


def test_a_table_is_loaded_anew_after_a_task_has_failed(tmp_path: Path, vending: Vending) -> None:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        here = MoverHere(settings, storage, clock=vending.clock, catalog=vending)
        storage.topic(TOPIC).publish("one")
        assert here.errors() == {TOPIC: None}
        REVOKED.update(f"key-{number}" for number in range(vending.loads + 1))
        storage.topic(TOPIC).publish("two")
        assert "ExpiredToken" in str(here.errors()[TOPIC])
        assert here.errors() == {TOPIC: None}
        assert [row["_payload"] for row in here.rows(TOPIC)] == [b"one", b"two"]


def test_short_lived_credentials_are_renewed_after_half_of_their_life() -> None:
    assert renew_at_ms({EXPIRES: "60000"}, {}, 0) == 30_000
    assert renew_at_ms({EXPIRES: str(HOUR_MS)}, {}, 0) == HOUR_MS - MARGIN_MS
    assert renew_at_ms({"adls.sas-token-expires-at-ms.account": "60000"}, {}, 20_000) == 40_000
    assert renew_at_ms({"gcs.oauth2.token-expires-at": "soon"}, {}, 0) is None


def test_credentials_of_the_settings_are_not_renewed() -> None:
    own = {"gcs.oauth2.token-expires-at": "60000"}
    assert renew_at_ms(own, own, 0) is None
    assert renew_at_ms({"s3.endpoint": "http://127.0.0.1"}, {}, 0) is None
