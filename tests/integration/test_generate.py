"""Dashboard and alert rules: files that can be read, over metrics that a real server has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml

from parts.exposition import families, series_names, watched
from parts.movers import environment


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    objects = {"enabled": True, "store": {"type": "memory"}}
    with watched(tmp_path_factory.mktemp("served"), wal={"disk_bytes_max": 2**30}, objects=objects) as address:
        return series_names(families(address))


def printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "frazil", "generate", "grafana-dashboard", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment()).stdout


def names_in(expression: str) -> set[str]:
    """The metrics of an expression, by a parser of PromQL; Grafana's own variable stands for a time."""
    return set(_selectors(promql.parse(expression.replace("$__rate_interval", "5m"))))


def _selectors(part: Any) -> Iterator[str]:
    match part:
        case promql.VectorSelector():
            yield part.name
        case promql.MatrixSelector():
            yield part.vector_selector.name
        case promql.BinaryExpr():
            yield from _selectors(part.lhs)
            yield from _selectors(part.rhs)
        case promql.Call():
            for each in part.args:
                yield from _selectors(each)
        case promql.AggregateExpr() | promql.ParenExpr():
            yield from _selectors(part.expr)
        case promql.NumberLiteral():
            return
        case _:
            raise AssertionError(f"not looked into: {type(part)}")


def test_every_line_of_the_dashboard_is_of_metrics_that_a_server_has(known: set[str]) -> None:
    made = json.loads(printed())
    graphs = [panel for panel in made["panels"] if panel["type"] == "timeseries"]
    expressions = [target["expr"] for panel in graphs for target in panel["targets"]]
    assert len(expressions) > 30
    for expression in expressions:
        assert names_in(expression) <= known, expression
        assert 'instance=~"$instance"' in expression
    asked = made["templating"]["list"][1]["query"]["query"]
    assert re.findall(r"frazil_\w+", asked)[0] in known


def test_the_panels_of_the_dashboard_lie_side_by_side() -> None:
    panels = json.loads(printed())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_alert_is_of_metrics_that_a_server_has_and_says_what_to_do(known: set[str]) -> None:
    made = yaml.safe_load(printed("--alerts"))
    (group,) = made["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert names_in(rule["expr"]) <= known, rule["expr"]
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    assert json.loads(printed("--alerts", "--json")) == made


def test_a_name_that_no_server_has_would_be_seen(known: set[str]) -> None:
    assert not names_in("sum(rate(frazil_log_row_total[5m])) / time()") <= known
