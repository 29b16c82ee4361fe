"""The tables of a dataset that its tenant fills with record batches, and the names that it may give them.

A table `orders` of the dataset `eu` of `acme` is the topic `/acme.eu/orders`, and the table `orders` in the namespace
`acme.eu` of the catalog.
"""

from __future__ import annotations

import re

from frazil.core.errors import InvalidName
from frazil.core.names import TopicName
from frazil.telemetry.signals import Signal, namespace_of

RESERVED_PREFIX, RESERVED_SUFFIX = "metrics", "__errors"
"""The tables of metrics, and those of what could not be decoded."""
_PARTITION = re.compile(r"-part-\d{1,9}\Z", re.ASCII)
_SIGNALS = tuple(signal.value for signal in Signal)


def table_topic(tenant: str, dataset: str, table: str) -> TopicName:
    """Return the topic of a table; raises `InvalidName`, also for the names that OpenTelemetry's tables have."""
    name = TopicName.parse(f"/{namespace_of(tenant, dataset)}/{table}")
    if _is_reserved(table):
        raise InvalidName(
            f"the table {table} has a name of OpenTelemetry's tables, which are {', '.join(_SIGNALS)}, "
            f"{RESERVED_PREFIX}* and *{RESERVED_SUFFIX}; use another one",
            name=table,
            field="table",
        )
    if not is_table(table):
        raise InvalidName(
            f"the table {table} has the name of a partition of a topic; leave out the -part-N",
            name=table,
            field="table",
        )
    return name


def is_table(topic: str) -> bool:
    """Whether a topic of a dataset may be a table that its tenant fills itself."""
    return not _is_reserved(topic) and _PARTITION.search(topic) is None


def _is_reserved(table: str) -> bool:
    folded = table.lower()
    return folded in _SIGNALS or folded.startswith(RESERVED_PREFIX) or folded.endswith(RESERVED_SUFFIX)
