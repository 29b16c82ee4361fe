"""`frazil traces`, `frazil logs` and `frazil metrics` on a folder without a server."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.cli.main import main
from frazil.cli.telemetry import traces
from frazil.cli.telemetry.log_filter import SEVERITIES, LogFilter, parse_severity, severity_shown
from frazil.cli.telemetry.places import DatasetPlace
from frazil.cli.terminal.output import time_shown
from frazil.core.errors import InvalidInput
from frazil.core.settings import make_settings
from frazil.node.query.session import SqlSession
from frazil.node.tiers.logs import FileView
from frazil.telemetry.decode import decode
from frazil.telemetry.signals import Signal
from parts.telemetry import START_NS, metrics, records, send, span, spans, trace

MS = 1_000_000
ALL_TIME = ("--since", "@2000-01-01")


def shown(after_us: int) -> str:
    return time_shown(START_NS // 1_000 + after_us)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


def ask(capsys: pytest.CaptureFixture[str], folder: Path, *words: str, code: int = 0) -> Any:
    assert main([*words, "--tenant", "acme", "--data", str(folder), "--json"]) == code
    out, err = capsys.readouterr()
    return json.loads(err.splitlines()[-1]) if code else [json.loads(line) for line in out.splitlines()]


def fill(folder: Path, signal: Signal, *requests: bytes) -> None:
    with frazil.open(folder) as storage:
        send(storage, signal, requests)


def test_a_trace_is_drawn_as_a_tree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = {"trace": trace(1), "id": span(1), "name": "GET /cart", "duration_ns": 100 * MS}
    below = {"trace": trace(1), "id": span(2), "parent": span(1), "name": "pay", "start_ns": 50 * MS, "status": 2}
    below |= {"message": "declined\x1b[2J", "events": [(60 * MS, "exception")], "duration_ns": 50 * MS}
    fill(folder, Signal.TRACES, spans("web", root), spans("bank", below), spans("web", {**root, "trace": trace(2)}))
    assert main(["traces", "show", "1", "--tenant", "acme", "--data", str(folder), "--events"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"trace {trace(1)}: 2 spans of 2 services, 100 ms from {shown(0)}"[:-8])
    assert lines[0].endswith("1 error")
    assert lines[2].split()[:3] == ["GET", "/cart", "web"]
    assert lines[3].startswith(r"  pay ERROR: declined\x1b[2J (1 event)")
    assert lines[4].strip() == "· exception at 60.0 ms"
    (found,) = ask(capsys, folder, "traces", "show", trace(1).upper())
    assert [(one["name"], one["depth"], one["status"]) for one in found["spans"]] == [
        ("GET /cart", 0, "Unset"), ("pay", 1, "Error")
    ]  # fmt: skip
    assert found["spans"][1]["events"][0]["name"] == "exception"
    assert ask(capsys, folder, "traces", "show", trace(3), code=3)["error"] == "trace_not_found"
    assert ask(capsys, folder, "traces", "show", "xyz", code=2)["field"] == "trace_id"


def test_of_a_large_trace_the_first_spans_are_drawn_and_the_rest_is_counted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ({"trace": trace(1), "id": span(n + 1), "start_ns": n, "status": 2 * (n > 2_997)} for n in range(3_000))
    fill(folder, Signal.TRACES, spans("web", *given))
    assert main(["traces", "show", "1", "-n", "10", "--tenant", "acme", "--data", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 12
    assert err.startswith("2990 spans are left out, 2 with an error")
    (found,) = ask(capsys, folder, "traces", "show", "1")
    assert (len(found["spans"]), found["left_out"], found["is_cut"]) == (1_000, 2_000, False)
    monkeypatch.setattr(traces, "SPANS_MAX", 2_000)
    (found,) = ask(capsys, folder, "traces", "show", "1")
    assert (len(found["spans"]), found["left_out"], found["is_cut"]) == (1_000, 1_000, True)


def test_traces_are_found_by_service_duration_errors_and_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = {"trace": trace(1), "id": span(1), "name": "quick", "duration_ns": MS}
    slow = {"trace": trace(2), "id": span(2), "name": "slow", "duration_ns": 900 * MS, "start_ns": MS}
    failed = {"trace": trace(2), "id": span(3), "parent": span(2), "status": 2, "start_ns": 0}
    fill(folder, Signal.TRACES, spans("web", quick, slow), spans("bank", failed))

    def found(*words: str) -> list[tuple[Any, ...]]:
        (listed,) = ask(capsys, folder, "traces", "list", *words)
        return [(one["root"], one["service"], one["spans"], one["errors"]) for one in listed]

    both = [("slow", "web", 2, 1), ("quick", "web", 1, 0)]
    assert sorted(found(*ALL_TIME)) == sorted(both)
    assert found(*ALL_TIME, "--errors") == both[:1]
    assert found(*ALL_TIME, "--service", "bank") == both[:1]
    assert found(*ALL_TIME, "--min-duration", "900ms") == both[:1]
    assert found(*ALL_TIME, "--min-duration", "902ms") == []
    assert len(found(*ALL_TIME, "-n", "1")) == 1
    assert found("--since", "1s") == []


def test_the_last_records_are_printed_by_their_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = records("shop", {"body": "late", "at_ns": 2 * MS, "attributes": {"a": 1}})
    early = records("shop", {"body": "early", "severity": 17, "at_ns": 0}, {"body": "a\nb", "at_ns": MS})
    fill(folder, Signal.LOGS, later, early)
    bodies = [one["body"] for one in ask(capsys, folder, "logs", "tail")]
    assert bodies == ["early", "a\nb", "late"]
    assert [one["body"] for one in ask(capsys, folder, "logs", "tail", "-n", "1")] == ["late"]
    assert ask(capsys, folder, "logs", "tail", "-n", "0") == []
    assert main(["logs", "tail", "--tenant", "acme", "--data", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{shown(0)} ERROR shop early",
        f"{shown(1_000)} INFO  shop a\\nb",
        f"{shown(2_000)} INFO  shop late a=1",
    ]


FILTERS = [
    LogFilter(),
    LogFilter(service="shop"),
    LogFilter(service="it's"),
    LogFilter(severity_min=17),
    LogFilter(text="sold"),
    LogFilter(text="%_'\\"),
    LogFilter(since=datetime.fromtimestamp(START_NS // 10**9 + 1, timezone.utc)),
    LogFilter("shop", 9, "o", datetime(2025, 1, 1, tzinfo=timezone.utc)),
]


def test_stored_records_and_new_ones_are_filtered_alike(tmp_path: Path) -> None:
    bodies = ["sold out", "SOLD", "%_'\\", "", "so"]
    given = [
        records(service, {"body": body, "severity": severity, "at_ns": second * 1_000 * MS})
        for service in ("shop", "it's", "")
        for body in bodies
        for severity in (0, 9, 17)
        for second in (0, 1)
    ]
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        send(storage, Signal.LOGS, given)
    count = len(given)
    times = pa.array([START_NS // 1_000] * count, pa.timestamp("us", "UTC"))
    rows = decode(Signal.LOGS, pa.array(given), pa.array(range(count), pa.int64()), times).rows["logs"]
    for chosen in FILTERS:
        query = f"SELECT _offset FROM {DatasetPlace('acme', 'default').table('logs')} WHERE {chosen.condition()}"
        with SqlSession(settings, FileView(settings)) as session:
            stored = sorted(row["_offset"] for batch in session.run(query).batches for row in batch.to_pylist())
        assert stored == chosen.kept(rows).column("_offset").to_pylist(), chosen
        assert 0 < len(stored) <= count


def test_severities_are_names_or_numbers() -> None:
    assert [parse_severity(text) for text in (None, "ERROR", "13", "24")] == [0, 17, 13, 24]
    for text in ("", "0", "25", "loud", "1.5", "²", "-1"):
        with pytest.raises(InvalidInput):
            parse_severity(text)
    assert severity_shown(18, "") == "ERROR"
    assert severity_shown(18, "bad") == "bad"
    assert severity_shown(0, None) == "-"
    assert [severity_shown(number, "") for number in SEVERITIES.values()] == [name.upper() for name in SEVERITIES]


def test_metrics_have_kind_unit_and_last_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request, scope = metrics("shop")
    load = scope.metrics.add(name="load", unit="1").gauge
    for at, value in enumerate((0.25, 0.5)):
        load.data_points.add(as_double=value, time_unix_nano=START_NS + at * MS)
    scope.metrics.add(name="took", unit="ms").histogram.data_points.add(count=1, time_unix_nano=1)
    fill(folder, Signal.METRICS, request.SerializeToString())
    (found,) = ask(capsys, folder, "metrics", "list", *ALL_TIME)
    assert [(one["metric"], one["kind"], one["unit"], one["points"], one["last_value"]) for one in found] == [
        ("load", "Gauge", "1", 2, 0.5), ("took", "Histogram", "ms", 1, None)
    ]  # fmt: skip
    (found,) = ask(capsys, folder, "metrics", "list", "--since", "30m")
    assert [one["metric"] for one in found] == ["took"]  # its time is absurd: it has that of the append
    assert ask(capsys, folder, "metrics", "list", *ALL_TIME, "--service", "bank") == [[]]


def test_bad_words_are_refused_before_anything_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, folder, "logs", "tail", "--since", "soon", code=2)["option"] == "--since"
    assert ask(capsys, folder, "logs", "tail", "--since", "@soon", code=2)["error"] == "invalid_input"
    assert ask(capsys, folder, "traces", "list", "--min-duration", "fast", code=2)["option"] == "--min-duration"
    assert main(["logs", "tail", "--tenant", "A/b", "--data", str(folder)]) == 2
    assert not folder.exists()


def test_the_only_tenant_needs_no_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(folder, Signal.LOGS, records("shop", {"body": "tea"}))
    words = ["--data", str(folder)]
    assert main(["tenants", "create", "acme", *words]) == 0
    assert main(["logs", "tail", *words]) == 0
    assert capsys.readouterr().out.endswith("shop tea\n")
    assert main(["tenants", "create", "bank", *words]) == 0
    assert main(["logs", "tail", *words]) == 2
    assert "--tenant: name one of acme, bank" in capsys.readouterr().err
