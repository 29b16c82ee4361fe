"""The page of metrics says what a real server exposes."""

from __future__ import annotations

from pathlib import Path

from documents import DOCS, table_rows

from parts.exposition import families, watched, wire_names


def test_the_metrics_table_equals_the_metrics_of_a_real_server(tmp_path: Path) -> None:
    rows = list(table_rows(DOCS / "reference" / "metrics.md", "## All of them"))
    sections = {
        "wal": {"disk_bytes_max": 2**30},
        "objects": {"enabled": True, "store": {"type": "memory"}},
        "telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}},
    }
    with watched(tmp_path, **sections) as address:
        found = families(address)
    assert [row[0].strip("`") for row in rows] == wire_names(found)
    assert [row[1] for row in rows] == [one.type for one in found]
    assert all(row[3] for row in rows)
    for row, one in zip(rows, found, strict=True):
        used = {label for sample in one.samples for label in sample.labels} - {"le"}
        assert used <= set(row[2].split(", ")), row[0]
        assert one.documentation
