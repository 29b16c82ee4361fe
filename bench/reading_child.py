"""Reads a topic of a data folder from its start and answers with its memory meanwhile, as JSON: for `reading.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil

import frazil
from frazil.core.settings import make_settings

SAMPLE_ROWS = 20_000


def main() -> None:
    data, topic, prefetch = sys.argv[1:]
    settings = make_settings({"data": Path(data), "reader": {"prefetch_size": int(prefetch)}})
    me, samples, rows = psutil.Process(), [], 0
    with frazil.open(settings) as storage:
        for batch in storage.topic(topic, create=False).read_batches():
            rows += batch.num_rows
            if rows // SAMPLE_ROWS > len(samples):
                samples.append(me.memory_info().rss)
    print(json.dumps({"rows": rows, "samples": samples}))


if __name__ == "__main__":
    main()
