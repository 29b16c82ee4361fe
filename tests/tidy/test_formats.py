"""The pages on the formats of tables and metadata say what is stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCS, table_rows

import frazil
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE
from frazil.core.settings import make_settings
from frazil.doors.errors import STATUSES
from frazil.doors.flight.actions import ABOUT
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import METRICS, TABLE_PROPERTIES
from frazil.meta import broker_keys, cluster_keys
from frazil.meta.topic_records import CREATOR_RECORDS
from frazil.node.access import danube_tokens, directory
from frazil.node.telemetry import tenants
from frazil.registry import records
from parts.moving import HandMover

FLIGHT = DOCS / "formats" / "flight.md"
TABLE, METADATA = DOCS / "formats" / "table.md", DOCS / "formats" / "metadata.md"


def _names(page: Path, heading: str) -> set[str]:
    return {name for row in table_rows(page, heading) for name in re.findall(r"`([^`]+)`", row[0])}


def test_columns_and_entries_of_a_table_are_on_its_page(tmp_path: Path) -> None:
    settings = make_settings({"data": tmp_path / "data"})
    with frazil.open(settings) as storage:
        topic = storage.topic("/shop/orders")
        topic.publish("tea")
        mover = HandMover(settings)
        mover.move(topic)
        accept(mover.catalog, mover.name(topic), topic.log.log_id, 0, "move")
        table = mover.table(topic)
        assert _names(TABLE, "## Columns") == set(table.schema().column_names) - {"key", "value"} - {
            name for name in table.schema().column_names if "." in name
        }
        entries = {re.sub(re.escape(topic.log.log_id), "{log id}", name) for name in table.properties}
    described = TABLE.read_text(encoding="utf-8")
    assert {name for name in entries if name.startswith("frazil.")} <= set(re.findall(r"`(frazil\.[^`]+)`", described))


def test_properties_of_a_table_are_on_its_page() -> None:
    rows = table_rows(TABLE, "## Properties of the table")
    assert {row[0].strip("`"): row[1].partition(",")[0].strip("`") for row in rows} == TABLE_PROPERTIES | METRICS[
        "_payload"
    ]
    assert _names(TABLE, "## Columns") >= set(ENVELOPE.names)


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        (
            "## The cluster",
            {value for name, value in vars(cluster_keys).items() if name.isupper() and name != "CLUSTER"},
        ),
        ("## The broker", {value for name, value in vars(broker_keys).items() if name.isupper()}),
        (
            "## The schema registry",
            {
                records.NEWEST_ID_KEY,
                records.subjects_prefix(),
                records.id_key(1).removesuffix("1"),
                records.versions_prefix(1).removesuffix("1/"),
                records.topic_key(TopicName.parse("/a/b")).removesuffix("a/b"),
            },
        ),
        ("## Tenants", {tenants.TENANTS, tenants.DELETING}),
        (
            "## Security",
            {directory.KEYS, directory.ROLES, directory.BINDINGS, CREATOR_RECORDS, danube_tokens.SECRET_KEY},
        ),
    ],
)
def test_keys_of_the_metadata_are_on_their_page(heading: str, known: set[str]) -> None:
    assert {key.partition("{")[0] for key in _names(METADATA, heading) if key.startswith("/")} == known


def test_actions_and_statuses_of_the_flight_door_are_on_its_page() -> None:
    assert _names(FLIGHT, "## Actions") == set(ABOUT)
    assert _names(FLIGHT, "## Errors") <= {status.grpc for status in STATUSES.values()}
