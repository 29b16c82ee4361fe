"""A Grafana dashboard over the metrics. What it shows is the list of rows below; the rest is Grafana's form of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
ON = '{instance=~"$instance"}'
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: its lines are expressions with the text of their legend."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def _rate(name: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({name}{ON}{RATE}))"


def _quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', 'instance, le')})"


def _highest(name: str, by: str) -> str:
    return f"max by ({by}) ({name}{ON})"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Log",
        (
            Panel("Ready", "short", ((f"frazil_ready{ON}", "{{instance}}"),)),
            Panel("Rows published", "rowsps", ((_rate("frazil_log_rows_total"), "{{instance}}"),)),
            Panel("Bytes written", "Bps", ((_rate("frazil_log_bytes_total"), "{{instance}}"),)),
            Panel(
                "Time to the answer",
                "s",
                (
                    (_quantile(0.5, "frazil_log_ack_seconds"), "{{instance}} p50"),
                    (_quantile(0.99, "frazil_log_ack_seconds"), "{{instance}} p99"),
                ),
            ),
            Panel(
                "Time of a sync",
                "s",
                (
                    (_quantile(0.5, "frazil_log_sync_seconds"), "{{instance}} p50"),
                    (_quantile(0.99, "frazil_log_sync_seconds"), "{{instance}} p99"),
                ),
            ),
            Panel(
                "Rows of a commit",
                "short",
                (
                    (
                        f"{_rate('frazil_log_group_rows_sum')} / {_rate('frazil_log_group_rows_count')}",
                        "{{instance}} mean",
                    ),
                ),
            ),
            Panel(
                "Refused and failed",
                "cps",
                (
                    (_rate("frazil_log_refused_total"), "{{instance}} refused"),
                    (_rate("frazil_log_failed_rows_total"), "{{instance}} failed rows"),
                ),
            ),
            Panel("Reads by tier", "rps", ((_rate("frazil_log_reads_total", "source"), "{{source}}"),)),
            Panel(
                "Disk",
                "bytes",
                (
                    (f"frazil_disk_used_bytes{ON}", "{{instance}} used"),
                    (f"frazil_disk_limit_bytes{ON}", "{{instance}} budget"),
                    (f"frazil_cache_used_bytes{ON}", "{{instance}} replay cache"),
                ),
            ),
            Panel(
                "Rows published, by topic",
                "rowsps",
                ((f"sum by (topic) (deriv(frazil_topic_end_offset{ON}{RATE}))", "{{topic}}"),),
            ),
            Panel(
                "Waiting for the disk",
                "bytes",
                ((_highest("frazil_topic_queued_bytes", "topic"), "{{topic}}"),),
            ),
            Panel(
                "Topics",
                "short",
                (
                    (f"frazil_topics_opened{ON}", "{{instance}} open"),
                    (f"frazil_topics_broken{ON}", "{{instance}} broken"),
                ),
            ),
        ),
    ),
    (
        "Tables",
        (
            Panel("Freshness", "s", ((_highest("frazil_table_freshness_seconds", "topic"), "{{topic}}"),)),
            Panel(
                "Objectives missed", "short", ((_highest("frazil_freshness_objective_missed", "topic"), "{{topic}}"),)
            ),
            Panel("Rows not in the table", "short", ((_highest("frazil_table_lag_rows", "topic"), "{{topic}}"),)),
            Panel("Rows moved", "rowsps", ((_rate("frazil_mover_rows_total"), "{{instance}}"),)),
            Panel(
                "Commits and failures",
                "cps",
                (
                    (_rate("frazil_mover_commits_total"), "{{instance}} commits"),
                    (_rate("frazil_mover_failures_total"), "{{instance}} failures"),
                ),
            ),
            Panel("Time of the last move", "s", ((_highest("frazil_table_last_move_seconds", "topic"), "{{topic}}"),)),
            Panel(
                "Since the last commit",
                "s",
                ((f"time() - {_highest('frazil_table_last_commit_timestamp_seconds', 'topic')}", "{{topic}}"),),
            ),
            Panel(
                "Mover and maintenance",
                "short",
                (
                    (f"frazil_mover_alive{ON}", "{{instance}} mover alive"),
                    (f"frazil_maintenance_failed{ON}", "{{instance}} maintenance failed"),
                ),
            ),
            Panel("Moves that fail", "short", ((_highest("frazil_table_move_failing", "topic"), "{{topic}}"),)),
        ),
    ),
    (
        "Broker",
        (
            Panel("Messages sent", "cps", ((_rate("frazil_broker_sends_total"), "{{instance}}"),)),
            Panel("Payload sent", "Bps", ((_rate("frazil_broker_sent_bytes_total"), "{{instance}}"),)),
            Panel("Calls refused", "cps", ((_rate("frazil_broker_refused_total", "code"), "{{code}}"),)),
            Panel(
                "Lag",
                "short",
                (
                    (
                        _highest("frazil_subscription_lag_messages", "topic, subscription"),
                        "{{topic}} {{subscription}}",
                    ),
                ),
            ),
            Panel(
                "In flight",
                "short",
                (
                    (
                        _highest("frazil_subscription_in_flight_messages", "topic, subscription"),
                        "{{topic}} {{subscription}}",
                    ),
                ),
            ),
            Panel(
                "Deliveries and answers",
                "cps",
                (
                    (_rate("frazil_subscription_deliveries_total"), "{{instance}} deliveries"),
                    (_rate("frazil_subscription_acks_total"), "{{instance}} acks"),
                    (_rate("frazil_subscription_nacks_total"), "{{instance}} nacks"),
                    (_rate("frazil_subscription_timeouts_total"), "{{instance}} timeouts"),
                ),
            ),
            Panel(
                "Redeliveries",
                "cps",
                (
                    (
                        _rate("frazil_subscription_redeliveries_total", "topic, subscription"),
                        "{{topic}} {{subscription}}",
                    ),
                ),
            ),
            Panel(
                "Given up",
                "cps",
                (
                    (_rate("frazil_subscription_dead_letters_total", "topic"), "{{topic}} dead letters"),
                    (_rate("frazil_subscription_dropped_total", "topic"), "{{topic}} dropped"),
                ),
            ),
            Panel(
                "Clients",
                "short",
                (
                    (f"frazil_broker_producers{ON}", "{{instance}} producers"),
                    (f"frazil_broker_consumers{ON}", "{{instance}} consumers"),
                    (f"frazil_flight_open_streams{ON}", "{{instance}} Flight streams"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """As Grafana imports it; which Prometheus and which instances is chosen on the page."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, graphs in ROWS:
        place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        in_a_row = WIDTH // PANEL_WIDTH
        for at, graph in enumerate(graphs):
            x, y = (at % in_a_row) * PANEL_WIDTH, top + (at // in_a_row) * PANEL_HEIGHT
            panels.append(_panel(len(panels) + 1, graph, {"x": x, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT}))
        top += -(-len(graphs) // in_a_row) * PANEL_HEIGHT
    return {
        "title": "Frazil",
        "uid": "frazil",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "tags": ["frazil"],
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": panels,
    }


def _panel(number: int, graph: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(graph.lines)
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": graph.title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": graph.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance_variable() -> dict[str, Any]:
    return {
        "name": "instance",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(frazil_ready, instance)", "refId": "instance"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
