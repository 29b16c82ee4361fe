"""One of two movers on the same tables and the same log. Each line it prints is one JSON value.

python two_movers_child.py FOLDER SPARK own TICKS             own the folder, serve it, publish, and move
python two_movers_child.py FOLDER SPARK ADDRESS TICKS STOP    move what the owner serves; before the commit of tick
                                                              number STOP, stop as if the machine had paused
The owner moves what is left once its input ends, and prints the ends of the topics.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from mover_child import TOPICS, payload

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import FlightSettings
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.store import TableStore
from frazil.pipeline.mover import Mover
from frazil.pipeline.source import LogSource, OwnLogs, RemoteOwner
from frazil.pipeline.spark import open_session, spark_place
from frazil.serve.flight import flight_door


def say(**value: Any) -> None:
    print(json.dumps(value), flush=True)


def new_mover(settings: frazil.Settings, spark: str, source: LogSource) -> Mover:
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    pause = threading.Event()
    session = open_session(spark_place(remote=spark))
    return Mover(settings, source, tables, session, SystemClock(), lambda s: bool(pause.wait(s)))


def run(mover: Mover, ticks: int, stop_at: int | None = None) -> None:
    """A tick that finds nothing to move does not count."""
    done = 0
    to_commit = mover._commit

    def stop_first(*arguments: Any) -> None:
        say(stopping=done)
        os.kill(os.getpid(), signal.SIGSTOP)
        mover._commit = to_commit  # type: ignore[method-assign]
        to_commit(*arguments)

    while done < ticks:
        if done == stop_at:
            mover._commit = stop_first  # type: ignore[method-assign]
        report = mover.tick(all_of_it=True)
        errors = [topic.error for topic in report.topics.values() if topic.error]
        say(tick=done, rows=report.rows, errors=errors)
        done += 1


def publish(topics: list[frazil.Topic], stop: threading.Event) -> None:
    while not stop.wait(0.1):
        for topic in topics:
            end = topic.log.visible_end
            topic.publish_many([payload(topic.name, offset) for offset in range(end, end + 20)])


def own(settings: frazil.Settings, spark: str, ticks: int) -> None:
    with frazil.open(settings) as storage, flight_door(storage, FlightSettings(port=0)) as door:
        topics = [storage.topic(name) for name in TOPICS]
        stop = threading.Event()
        publisher = threading.Thread(target=publish, args=(topics, stop))
        publisher.start()
        mover = new_mover(settings, spark, OwnLogs(storage))
        say(address=door.address)
        run(mover, ticks)
        sys.stdin.read()  # the other still needs the log
        stop.set()
        publisher.join()
        while mover.tick(all_of_it=True).lag_rows:
            pass
        say(ends={topic.name: topic.stats().end for topic in topics})


def main(folder: Path, spark: str, source: str, ticks: int, stop_at: int | None) -> None:
    settings = frazil.Settings(data=folder)
    if source == "own":
        own(settings, spark, ticks)
    else:
        run(new_mover(settings, spark, RemoteOwner(source)), ticks, stop_at)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), words[1], words[2], int(words[3]), int(words[4]) if len(words) > 4 else None)
