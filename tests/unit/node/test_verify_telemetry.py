"""`verify` proves the tables of telemetry: each row of each request once, unchanged, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.node.verify import telemetry
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from frazil.telemetry.signals import Signal
from parts.in_process import MoverHere
from parts.otlp_requests import NOT_PROTOBUF, append, points, spans

TRACES, METRICS = "/acme.default/traces", "/acme.default/metrics"


class World:
    def __init__(self, folder: Path) -> None:
        self.settings = make_settings({"data": folder / "data", "wal": {"max_file_size": 64 * 1024}})
        self.storage = frazil.open(self.settings).__enter__()
        self.mover = MoverHere(self.settings, self.storage, clock=SystemClock())

    def proof(self, topic: str) -> TopicProof:
        (found,) = prove(self.settings, topic, lambda _: lambda _: None)
        return found

    def rewrite(self, table: str, change: Any) -> None:
        """Replace the rows of a table by others, as another engine may."""
        found = self.mover.catalog.load_table(("acme.default", table))
        found.overwrite(change(found.scan().to_arrow()))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    append(made.storage, METRICS, Signal.METRICS, *(points(n) for n in range(5)), NOT_PROTOBUF)
    append(made.storage, TRACES, Signal.TRACES, *(spans(n, n % 4) for n in range(20)), NOT_PROTOBUF)
    assert made.mover.tick().failures == 0
    append(made.storage, TRACES, Signal.TRACES, spans(21))
    yield made
    made.storage.close()


def kinds(proof: TopicProof) -> set[str]:
    return {problem.kind for problem in proof.problems}


def test_requests_in_the_log_are_decoded_again_and_compared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "WINDOW", 7)
    traces, metrics = world.proof(TRACES), world.proof(METRICS)
    assert (traces.problems, metrics.problems) == ([], [])
    assert traces.tables == {"traces": 30, "traces__errors": 1}
    assert metrics.tables == {"metrics": 10, "metrics_gauge": 10, "metrics_sum": 10, "metrics__errors": 1}
    assert (traces.redecoded, metrics.redecoded) == (21, 6)


@pytest.mark.parametrize(
    ("table", "change", "wanted"),
    [
        ("traces", lambda rows: rows.slice(1), "missing"),
        ("traces", lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]), "double"),
        ("metrics_sum", lambda rows: rows.slice(2), "missing"),
        ("metrics__errors", lambda rows: rows.slice(1), "missing"),
    ],
)
def test_rows_that_are_missing_or_double_are_found(world: World, table: str, change: Any, wanted: str) -> None:
    world.rewrite(table, change)
    proof = world.proof(TRACES if table == "traces" else METRICS)
    assert wanted in kinds(proof)


def test_a_changed_value_is_found(world: World) -> None:
    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("span_name")
        names = pc.replace_substring(rows["span_name"], "span 7.0", "span 7.1")
        return rows.set_column(at, rows.schema.field(at), names)

    world.rewrite("traces", change)
    (problem,) = world.proof(TRACES).problems
    assert (problem.kind, problem.range.start, problem.range.end) == ("changed", 7, 8)


def test_rows_beyond_the_token_are_found(world: World) -> None:
    def change(rows: pa.Table) -> pa.Table:
        later = pc.add(rows["_offset"], 1_000)
        return pa.concat_tables([rows, rows.set_column(0, rows.schema.field(0), later).slice(0, 3)])

    world.rewrite("traces", change)
    assert "beyond" in kinds(world.proof(TRACES))


@pytest.mark.parametrize("table", ["metrics", "metrics_gauge"])
def test_without_the_log_the_tables_must_agree_with_themselves(world: World, table: str) -> None:
    """As for requests that retention has removed: the check does without decoding."""
    from frazil.lake.read.history import TableHistories

    (log_id,) = {info.log_id for info in world.mover.mover._source.logs() if str(info.topic) == METRICS}
    history = TableHistories(world.settings).of(world.storage.topic(METRICS).log.name, log_id)
    assert history is not None
    others = ["metrics_gauge", "metrics_sum", "metrics__errors"]

    def check() -> set[str]:
        check = telemetry.TelemetryCheck(Signal.METRICS, history.derived(others), lambda _: iter(()), lambda _: None)
        return {problem.kind for problem in check.run(None).problems}

    assert check() == set()
    world.rewrite(table, lambda rows: rows.filter(pc.not_equal(rows["_offset"], 3)))
    assert check() == {"changed", "missing"}
