"""Topics that are deleted, or made again, while a mover is at work that has listed them before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, MetadataUnavailable, OwnerUnreachable
from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.maintenance.table_purge import TablePurge
from frazil.lake.tables.token import logs
from frazil.log.info import LogInfo
from frazil.node.movers.log_source import OwnLogs
from frazil.node.telemetry.opening import stored_tenants
from frazil.pipeline.move.tasks import RangeInput, RangeOutput
from frazil.pipeline.move.topic_rules import TopicsOfSettings
from frazil.telemetry.signals import Signal
from frazil.testing.jobs import InProcessJobs
from parts.in_process import MoverHere
from parts.meddling import Meddling
from parts.otlp_requests import append, points, spans

TRACES, METRICS = "/acme.default/traces", "/acme.default/metrics"


class SlowToPlan(OwnLogs):
    """After it has listed the logs something else happens, before the mover goes on."""

    def __init__(self, storage: frazil.Storage, then: Callable[[], None]) -> None:
        super().__init__(storage)
        self._then: list[Callable[[], None]] = [then]
        self.is_away = False

    def logs(self) -> list[LogInfo]:
        if self.is_away:
            raise OwnerUnreachable("nowhere", "it is away")
        found = super().logs()
        while self._then:
            self._then.pop()()
        return found


class SlowJobs(InProcessJobs):
    """Something else happens between the tasks of the first job and the answer to the mover."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then: list[Callable[[], None]] = [then]

    def run(self, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
        outputs = super().run(tasks)
        while self._then:
            self._then.pop()()
        return outputs


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = make_settings({"data": folder / "data"})
        self.storage = frazil.open(self.settings).__enter__()
        self.catalog = open_catalog(self.settings)

    def mover(self, meanwhile: Callable[[], None] = lambda: None, **given: Any) -> MoverHere:
        return MoverHere(self.settings, self.storage, meanwhile, clock=SystemClock(), **given)

    def delete(self, topic: str) -> None:
        """As the deletion of a tenant does: the topic, then all tables."""
        self.storage.delete_topic(topic)
        purge = TablePurge(self.settings)
        for planned in purge.plan(lambda namespace: namespace.startswith("acme."), {"traces", "metrics"}):
            purge.purge(planned)
        purge.drop_namespaces(["acme.default"])
        assert self.left() == []

    def left(self) -> list[str]:
        """What the catalog and the warehouse have of the tenant."""
        assert self.settings.data is not None
        names = [name for (name,) in self.catalog.list_namespaces() if name.startswith("acme.")]
        tables = [".".join(table) for name in names for table in self.catalog.list_tables(name)]
        return names + tables + [str(one) for one in (self.settings.data / "warehouse").rglob("*") if one.is_file()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.storage.close()


def test_a_table_that_is_created_after_the_proof_of_its_tenants_deletion_goes_again(world: World) -> None:
    append(world.storage, TRACES, Signal.TRACES, spans(0))
    source = SlowToPlan(world.storage, lambda: world.delete(TRACES))
    report = world.mover(source=source).tick()
    assert (report.failures, report.rows) == (0, 0)
    assert world.left() == []


def test_a_table_of_derived_rows_that_is_created_after_the_proof_goes_again(world: World) -> None:
    append(world.storage, METRICS, Signal.METRICS, points(0, ["gauge"]))
    assert world.mover().tick().failures == 0
    append(world.storage, METRICS, Signal.METRICS, points(1, ["sum"]))
    world.mover(jobs=SlowJobs(lambda: world.delete(METRICS))).tick()
    assert world.left() == []


def test_what_cannot_be_asked_at_once_is_removed_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    append(world.storage, TRACES, Signal.TRACES, spans(0))

    def then() -> None:
        world.delete(TRACES)
        source.is_away = True

    source = SlowToPlan(world.storage, then)
    mover = world.mover(source=source)
    with pytest.raises(FrazilError):
        mover.tick()
    assert world.left() != []
    source.is_away = False
    mover.tick()
    assert world.left() == []


def test_others_are_moved_while_the_tenants_cannot_be_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in (TRACES, "/bank.default/traces"):
        append(world.storage, topic, Signal.TRACES, spans(0))
    away = MetadataUnavailable("etcd", "it is away")
    asked: list[FrazilError] = [away] * 3
    has_tenant = TopicsOfSettings.has_tenant

    def once(self: TopicsOfSettings, namespace: str) -> bool:
        if asked:
            raise asked.pop()
        return has_tenant(self, namespace)

    monkeypatch.setattr(TopicsOfSettings, "has_tenant", once)
    mover = world.mover(source=SlowToPlan(world.storage, lambda: world.delete(TRACES)))
    assert mover.tick().rows == 3
    for _ in range(2):
        mover.tick()
    assert any("acme.default" in one for one in world.left())
    assert len([one for one in caplog.messages if "is looked at later" in one]) == 1
    mover.tick()
    assert [one for one in world.left() if "acme" in one] == []


def test_the_table_of_a_topic_that_is_gone_stays_while_its_tenant_is_there(world: World) -> None:
    """Another broker may have the topic by now, and its mover the table."""
    with stored_tenants(world.settings) as tenants:
        tenants.create("acme", {}, with_key=False)
    append(world.storage, TRACES, Signal.TRACES, spans(0))
    source = SlowToPlan(world.storage, lambda: world.storage.delete_topic(TRACES))
    world.mover(source=source).tick()
    assert world.catalog.table_exists("acme.default.traces")


def test_a_topic_whose_columns_do_not_fit_does_not_delay_others_that_create_tables(world: World) -> None:
    with stored_tenants(world.settings) as tenants:
        tenants.create("bank", {"lifted": [{"source": "item", "key": "a", "column": "span_name"}]}, with_key=False)
    for topic in (TRACES, "/bank.default/traces"):
        append(world.storage, topic, Signal.TRACES, spans(0))
    assert {topic: error is None for topic, error in world.mover().errors().items()} == {
        TRACES: True,
        "/bank.default/traces": False,
    }


def test_rows_are_not_committed_beside_those_of_the_topic_that_was_made_again_meanwhile(world: World) -> None:
    """Both have offsets from 0 on, and the table has none of either when the first mover plans."""
    append(world.storage, TRACES, Signal.TRACES, spans(0))

    def meddle(number: int, commit: Callable[[], Any]) -> Any:
        if number == 2:  # the first has created the table
            world.storage.delete_topic(TRACES)
            append(world.storage, TRACES, Signal.TRACES, spans(1, 5))
            assert world.mover().tick().failures == 0
        return commit()

    catalog: Any = Meddling(world.catalog, meddle)
    report = world.mover(catalog=catalog).tick()
    assert report.rows == 0
    table = world.catalog.load_table("acme.default.traces")
    assert list(logs(table)) == [world.storage.topic(TRACES).log.log_id]
    rows = table.scan().to_arrow()
    assert sorted(rows["_index"].to_pylist()) == list(range(5))
    assert set(rows["service_name"].to_pylist()) == {"cart"}
