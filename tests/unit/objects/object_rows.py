"""The rows of the log that the tests of this folder upload."""

from __future__ import annotations

import pyarrow as pa

TOPIC = "/shop/readings"
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False), pa.field("pad", pa.binary())])
EACH, FRAMES = 7, 40
END = EACH * FRAMES


def numbers(first: int, count: int = EACH, pad: int = 4_000) -> pa.RecordBatch:
    values = range(first, first + count)
    return pa.record_batch({"value": list(values), "pad": [bytes([one % 251]) * pad for one in values]}, schema=SCHEMA)
