"""Requests of telemetry on real Spark: an OTLP sender's requests are rows of tables, and verify proves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import frazil
from frazil.lake.catalogs.opening import open_catalog
from frazil.telemetry.signals import Signal
from parts.movers import make_place, run
from parts.otlp_requests import NOT_PROTOBUF, append, log_records, points, spans


@pytest.mark.timeout(600)
def test_a_mover_on_spark_fills_the_tables_of_all_signals(tmp_path: Path, connect: str) -> None:
    place = make_place(tmp_path / "data", tmp_path / "lake")
    with frazil.open(place.settings) as storage:
        append(storage, "/acme.default/traces", Signal.TRACES, *(spans(n) for n in range(50)), NOT_PROTOBUF)
        append(storage, "/acme.default/logs", Signal.LOGS, *(log_records(n) for n in range(20)))
        append(storage, "/acme.default/metrics", Signal.METRICS, *(points(n) for n in range(20)))
    done = run(place, "pipeline", "run", "--once", "--json", "--remote", connect)
    assert done.returncode == 0, done.stderr
    catalog = open_catalog(place.settings)
    wanted = {"traces": 150, "traces__errors": 1, "logs": 60, "metrics": 40, "metrics_gauge": 40, "metrics_sum": 40}
    found = {name: catalog.load_table(("acme.default", name)).scan().to_arrow().num_rows for name in wanted}
    assert found == wanted
    proof = run(place, "verify", "--json")
    assert proof.returncode == 0, proof.stdout
    tables: dict[str, int] = {}
    for topic in json.loads(proof.stdout)["topics"]:
        tables |= topic["tables"]
    assert tables == wanted
