"""A child that owns a folder, appends requests of telemetry without pause and moves them; to be killed at any moment.

python telemetry_child.py FOLDER publish [REMOTE]   append and move until killed; a line for each acknowledged append
python telemetry_child.py FOLDER drain [REMOTE]     move all that is left, then print the ends of the topics and exit

Tasks run in this process, or behind a Spark Connect server at REMOTE. What a request holds follows from its offset.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.mover import Mover
from frazil.telemetry.signals import Signal
from frazil.testing.jobs import InProcessJobs

sys.path.insert(0, str(Path(__file__).parents[1]))
from parts.otlp_requests import NOT_PROTOBUF, append, points, spans

TOPICS = {"/crash.default/traces": Signal.TRACES, "/crash.default/metrics": Signal.METRICS}
ERRORS_EVERY, KINDS = 17, (("gauge",), ("sum",), ("gauge", "sum"), ("histogram", "summary"), ())


def request(signal: Signal, offset: int) -> bytes:
    if offset % ERRORS_EVERY == ERRORS_EVERY - 1:
        return NOT_PROTOBUF
    return spans(offset, offset % 4) if signal is Signal.TRACES else points(offset, KINDS[offset % len(KINDS)])


def main(folder: Path, what: str, remote: str | None) -> None:
    settings = make_settings({"data": folder, "wal": {"max_file_size": 256 * 1024}})
    jobs = InProcessJobs() if remote is None else _spark(settings, remote)
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    with frazil.open(settings) as storage:
        mover = Mover(settings, OwnLogs(storage), tables, jobs, SystemClock(), lambda _: None)
        if what == "drain":
            while mover.tick(all_of_it=True).lag_rows:
                pass
            _say({name: storage.topic(name).log.visible_end for name in TOPICS})
            return
        threading.Thread(target=_publish, args=(storage,), daemon=True).start()
        while True:
            report = mover.tick(all_of_it=True)
            _say({"ticked": report.rows, "failures": report.failures})


def _say(what: dict[str, object]) -> None:
    """In one write: two threads do."""
    os.write(1, json.dumps(what).encode() + b"\n")


def _publish(storage: frazil.Storage) -> None:
    pause = threading.Event()
    ends = dict.fromkeys(TOPICS, 0)
    for name in TOPICS:
        if name in storage.topics():
            ends[name] = storage.topic(name).log.visible_end
    while not pause.wait(0.02):
        for name, signal in TOPICS.items():
            offsets = append(storage, name, signal, *(request(signal, ends[name] + at) for at in range(10)))
            assert offsets[0] == ends[name]
            ends[name] = offsets[-1] + 1
            _say({"topic": name, "acknowledged": ends[name]})


def _spark(settings: frazil.Settings, remote: str) -> JobRunner:
    from frazil.pipeline.spark.jobs import SparkJobs
    from frazil.pipeline.spark.session import open_session, spark_place, warm_up

    session = open_session(spark_place(None, remote))
    warm_up(session)
    return SparkJobs(session, settings)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), words[1], words[2] if len(words) > 2 else None)
