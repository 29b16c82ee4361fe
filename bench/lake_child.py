"""A mover of its own process for `bench/lake.py`, told on stdin what to do, one JSON object a line.

    {"do": "move", "data": folder}      move all that the folder's logs have; answers rows, seconds and memory
    {"do": "tick", "data": folder}      one tick; answers rows, commits and seconds

Each folder is opened anew with a catalog of its own; Spark stays.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow as pa

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.spark.jobs import SparkJobs
from frazil.pipeline.spark.session import open_session, spark_place, warm_up

SAMPLE_SECONDS = 0.2


def tables_of(settings: Settings) -> TableStore:
    properties = catalog_properties(settings)
    return TableStore(open_catalog(settings), properties.get("warehouse"), properties)


class Memory:
    """The largest and the later memory of this process, its JVM and its Python workers, while the block runs."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(SAMPLE_SECONDS):
            found = {"driver": me.memory_info().rss, "jvm": 0, "workers": 0}
            for child in me.children(recursive=True):
                try:
                    kind = "jvm" if child.name() == "java" else "workers"
                    found[kind] += child.memory_full_info().uss if kind == "workers" else child.memory_info().rss
                except psutil.Error:
                    continue
            self.samples.append(found)


def main() -> None:
    session = open_session(spark_place())
    warm_up(session)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        settings = make_settings({**asked.get("settings", {}), "data": Path(asked["data"])})
        with frazil.open(settings) as storage, Memory() as memory:
            tables = tables_of(settings)
            mover = Mover(
                settings, OwnLogs(storage), tables, SparkJobs(session, settings), SystemClock(), lambda _: None
            )
            for info in OwnLogs(storage).logs():  # as the peer's, the tables are there before the clock runs
                tables.ensure(table_of(info.topic)[0], pa.ipc.read_schema(pa.py_buffer(info.stored_schema)))
            rows = commits = ticks = 0
            started = time.perf_counter()
            while True:
                report = mover.tick(all_of_it=True)
                rows, commits, ticks = rows + report.rows, commits + report.commits, ticks + 1
                if asked["do"] == "tick" or not report.lag_rows:
                    break
            seconds = time.perf_counter() - started
        errors = [topic.error for topic in report.topics.values() if topic.error]
        assert not errors, errors
        answer = {"rows": rows, "commits": commits, "ticks": ticks, "seconds": seconds, "memory": memory.samples}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
