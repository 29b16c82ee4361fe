"""Requests that could not be decoded are decoded again by a later decoder, and each row is appended once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.main import app
from frazil.core.clock import SystemClock
from frazil.core.errors import InvalidInput, TableRefused, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import make_settings
from frazil.lake.tables import undecoded
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.node.verify.proofs import prove
from frazil.pipeline.telemetry_errors import Replay, TelemetryErrors
from frazil.telemetry.decode import decoding
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.otlp_requests import NOT_PROTOBUF, append, points

METRICS = "/acme.default/metrics"


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = make_settings({"data": folder / "data"})
        self.storage = frazil.open(self.settings).__enter__()
        self.mover = MoverHere(self.settings, self.storage, clock=SystemClock())

    def replay(self) -> Replay:
        return TelemetryErrors(self.settings, TopicName.parse(METRICS), lambda _: None).replay()

    def places(self, table: str) -> list[tuple[int, int]]:
        rows = self.mover.catalog.load_table(("acme.default", table)).scan().to_arrow()
        return sorted(zip(rows["_offset"].to_pylist(), rows["_index"].to_pylist(), strict=True))

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with SqlSession(self.settings, FileView(self.settings), None, confined=True) as session:
            return [tuple(row.values()) for batch in session.run(query).batches for row in batch.to_pylist()]

    def problems(self) -> list[Any]:
        (proof,) = prove(self.settings, METRICS, lambda _: lambda _: None)
        return proof.problems


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Offset 1 is too large for the decoder that moved it, and 2 for any."""
    made = World(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(decoding, "REQUEST_REPEATED_BYTES_MAX", 250)
        earlier.setattr(decoding, "PART_REPEATED_BYTES_MAX", 250)
        append(made.storage, METRICS, Signal.METRICS, points(0, ["gauge"]), points(1), NOT_PROTOBUF)
        assert made.mover.tick().undecoded == {METRICS: 2}
    yield made
    made.storage.close()


def test_what_a_later_decoder_accepts_is_in_the_tables_once(world: World) -> None:
    assert world.places("metrics") == [(0, 0)]
    assert world.problems() == [], "an error that today's decoder would accept is no problem"
    assert world.replay() == Replay(1, 1, {"metrics": 2, "metrics_gauge": 2, "metrics_sum": 2})
    assert world.replay() == Replay(0, 1, {})
    assert world.places("metrics") == [(0, 0), (1, 0), (1, 1)]
    assert world.places("metrics_sum") == [(1, 2), (1, 3)]
    assert world.problems() == []
    append(world.storage, METRICS, Signal.METRICS, points(3, ["sum"]))
    assert world.mover.tick().failures == 0
    assert world.places("metrics_sum") == [(1, 2), (1, 3), (3, 0), (3, 1)]
    assert world.problems() == []


def test_queries_see_what_a_replay_added_to_tables_that_were_behind_or_not_there(world: World) -> None:
    """A table of points that gets no rows of a range is not committed: its token stays, and a replay moves none."""
    query = "select _offset, _index from acme.default.{} order by all"
    append(world.storage, METRICS, Signal.METRICS, points(3, ["histogram"]))
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(decoding, "REQUEST_REPEATED_BYTES_MAX", 250)
        earlier.setattr(decoding, "PART_REPEATED_BYTES_MAX", 250)
        append(world.storage, METRICS, Signal.METRICS, points(4))
        assert world.mover.tick().undecoded == {METRICS: 1}
    world.replay()
    for number in range(2):
        gauges = [(0, 0), (0, 1), (1, 0), (1, 1), (4, 0), (4, 1), *[(5, 0), (5, 1)] * number]
        sums = [(1, 2), (1, 3), (4, 2), (4, 3), *[(5, 2), (5, 3)] * number]
        for _ in ("in the log", "in the tables"):
            assert world.ask(query.format("metrics_gauge")) == gauges
            assert world.ask(query.format("metrics_sum")) == sums
            assert world.mover.tick().failures == 0
        append(world.storage, METRICS, Signal.METRICS, points(5))
    assert world.problems() == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("killed", [1, 2, 3])
def test_a_replay_that_is_cut_off_is_completed_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, killed: int, after: bool
) -> None:
    commits = 0
    real = undecoded.UndecodedRequests._commit

    def commit(self: Any, *arguments: Any) -> bool:
        nonlocal commits
        commits += 1
        if commits == killed and not after:
            raise KeyboardInterrupt
        done = real(self, *arguments)
        if commits == killed:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as cut:
        cut.setattr(undecoded.UndecodedRequests, "_commit", commit)
        with pytest.raises(KeyboardInterrupt):
            world.replay()
    world.replay()
    assert world.places("metrics") == [(0, 0), (1, 0), (1, 1)]
    assert world.places("metrics_gauge") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert world.places("metrics_sum") == [(1, 2), (1, 3)]
    assert world.problems() == []


def test_a_replay_beside_a_mover_adds_each_row_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mover commits between the look of a replay and its commit: the replay looks again."""
    real = undecoded.UndecodedRequests._commit
    append(world.storage, METRICS, Signal.METRICS, points(3))

    def commit(self: Any, *arguments: Any) -> bool:
        world.mover.tick()
        return real(self, *arguments)

    monkeypatch.setattr(undecoded.UndecodedRequests, "_commit", commit)
    world.replay()
    assert world.places("metrics") == [(0, 0), (1, 0), (1, 1), (3, 0), (3, 1)]
    assert world.problems() == []


def test_the_verbs_list_and_replay(world: World) -> None:
    words = ["telemetry", "errors", "list", METRICS, "--data", str(world.settings.data), "--json"]
    found = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert [(one["offset"], one["replayed"], one["bytes"]) for one in found][1] == (2, False, len(NOT_PROTOBUF))
    assert "repeat" in found[0]["reason"]
    shown = CliRunner().invoke(app, ["telemetry", "errors", "replay", METRICS, "--data", str(world.settings.data)])
    assert shown.stderr.strip() == "1 request decoded, 6 rows added; 1 still cannot be decoded"
    found = json.loads(CliRunner().invoke(app, words).stdout)
    assert [(one["offset"], one["replayed"]) for one in found] == [(1, True), (2, False)]


def test_a_topic_without_errors_of_telemetry_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="no topic of telemetry"):
        TelemetryErrors(world.settings, TopicName.parse("/acme.default/orders"), lambda _: None)
    with pytest.raises(TopicNotFound):
        TelemetryErrors(world.settings, TopicName.parse("/acme.default/logs"), lambda _: None)


def test_a_replay_leaves_no_table_of_a_tenant_that_is_deleted_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_rows, catalog = undecoded.UndecodedRequests.append, world.mover.catalog

    def append_later(self: Any, *given: Any) -> int:
        for table in catalog.list_tables("acme.default"):
            catalog.purge_table(table)
        catalog.drop_namespace("acme.default")
        return append_rows(self, *given)

    monkeypatch.setattr(undecoded.UndecodedRequests, "append", append_later)
    with pytest.raises(TableRefused, match="no longer there"):
        world.replay()
    assert ("acme.default",) not in catalog.list_namespaces()
