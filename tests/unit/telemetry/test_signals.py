"""A topic is one of telemetry by its name and its columns together."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.core.names import TopicName
from frazil.telemetry.signals import SIGNAL_KEY, Signal, request_schema, signal_of

MARKED = pa.field("request", pa.binary(), nullable=False, metadata={SIGNAL_KEY: b"traces"})
ITEMS = pa.field("items", pa.int32(), nullable=False)


@pytest.mark.parametrize("signal", Signal)
def test_a_topic_of_requests_has_the_signal_of_its_name(signal: Signal) -> None:
    stored = request_schema(signal).append(pa.field("_append_time", pa.timestamp("us", "UTC"), nullable=False))
    assert signal_of(TopicName("acme.default", signal.value), stored) is signal


@pytest.mark.parametrize("name", ["/acme/traces", "/acme.default/logs", "/acme.default/traces2", "/a.b.c/traces"])
def test_a_topic_of_another_name_is_none_whatever_its_columns_are(name: str) -> None:
    assert signal_of(TopicName.parse(name), request_schema(Signal.TRACES)) is None


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([MARKED]),
        pa.schema([MARKED.with_type(pa.int64()), ITEMS]),
        pa.schema([MARKED.with_metadata({SIGNAL_KEY: b"unknown"}), ITEMS]),
        pa.schema([MARKED.with_metadata({SIGNAL_KEY: b"\xff"}), ITEMS]),
        pa.schema([MARKED.remove_metadata(), ITEMS]),
        pa.schema([MARKED, ITEMS.with_type(pa.string())]),
    ],
    ids=["no items", "a number", "unknown signal", "no text", "not marked", "items of text"],
)
def test_a_topic_with_other_columns_is_none(schema: pa.Schema) -> None:
    assert signal_of(TopicName.parse("/acme.default/traces"), schema) is None
