"""The signals of OpenTelemetry, the topics that hold their requests, and the tables that their rows go to.

Each (tenant, dataset, signal) has a topic `/{tenant}.{dataset}/{signal}`. A row of it is one export request, as bytes
of Protobuf. Its spans, log records or points become rows of tables in the namespace `{tenant}.{dataset}`.
"""

from __future__ import annotations

import enum
import re

import pyarrow as pa

from frazil.core.errors import InvalidName
from frazil.core.names import TopicName

NAME_LENGTH_MAX = 60
"""Of a tenant and of a dataset: both and a dot are a namespace."""
_NAME = re.compile(rf"[a-z0-9_][a-z0-9_-]{{0,{NAME_LENGTH_MAX - 1}}}", re.ASCII)
_DATASET = re.compile(rf"{_NAME.pattern}\.{_NAME.pattern}", re.ASCII)

DEFAULT_DATASET = "default"

SIGNAL_KEY = b"frazil.telemetry"
"""The key of the metadata of the request column whose value is the signal: it makes a topic one of telemetry."""


class Signal(enum.StrEnum):
    TRACES = "traces"
    LOGS = "logs"
    METRICS = "metrics"


def check_name(text: str, field: str) -> None:
    """Raise `InvalidName` for a name that a tenant or a dataset (`field`) cannot have."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise InvalidName(
            f"the {field} {ascii(text)[:80]} must be 1 to {NAME_LENGTH_MAX} of a-z 0-9 _ - and not begin with -",
            name=ascii(text)[:80],
            field=field,
        )


def namespace_of(tenant: str, dataset: str) -> str:
    """Return the namespace of a dataset, of its topics and of its tables."""
    check_name(tenant, "tenant")
    check_name(dataset, "dataset")
    return f"{tenant}.{dataset}"


def topic_of_signal(tenant: str, dataset: str, signal: Signal) -> TopicName:
    """Return the topic that holds the requests of a signal."""
    return TopicName(namespace_of(tenant, dataset), signal.value)


def request_schema(signal: Signal) -> pa.Schema:
    """Return the columns of a topic of requests: the request as bytes, and how many spans, records or points it has."""
    marked = {SIGNAL_KEY: signal.value.encode()}
    return pa.schema(
        [
            pa.field("request", pa.binary(), nullable=False, metadata=marked),
            pa.field("items", pa.int32(), nullable=False),
        ]
    )


def signal_of(topic: TopicName, stored: pa.Schema) -> Signal | None:
    """Return the signal whose requests a topic holds; None for any other topic.

    Names and columns must be those of a topic of requests, too: who creates a topic may mark its columns as they like.
    """
    signal = next((one for one in Signal if one.value == topic.topic), None)
    if signal is None or _DATASET.fullmatch(topic.namespace) is None:
        return None
    for wanted in request_schema(signal):
        index = stored.get_field_index(wanted.name)
        if index < 0 or not stored.field(index).equals(wanted, check_metadata=wanted.metadata is not None):
            return None
    return signal
