"""One of two movers on the same tables and the same log. Each line it prints is one JSON value.

python two_movers_child.py FOLDER own                   own the folder, serve it, publish, and move until its input ends
python two_movers_child.py FOLDER ADDRESS TICKS STOP    move what the owner serves; before the commit of tick
                                                        number STOP, stop as if the machine had paused
The owner moves what is left once its input ends, and prints the ends of the topics. Tasks run in the mover's process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mover_child import TOPICS, payload

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import flight_door
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import LogSource, OwnLogs, RemoteOwner
from frazil.pipeline.move.committing import TickCommits
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.tasks import RangeOutput
from frazil.testing.jobs import InProcessJobs


def say(**value: Any) -> None:
    print(json.dumps(value), flush=True)


def new_mover(settings: frazil.Settings, source: LogSource) -> Mover:
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    pause = threading.Event()
    return Mover(settings, source, tables, InProcessJobs(), SystemClock(), lambda s: bool(pause.wait(s)))


def run(mover: Mover, ticks: int, stop_at: int | None = None) -> None:
    """So many ticks, and more until rows were moved after the stop, at the first commit from tick `stop_at` on."""
    done = moved = 0
    stopped_at: int | None = None
    to_commit = TickCommits.commit

    def stop_first(commits: TickCommits, outputs: Sequence[RangeOutput]) -> None:
        nonlocal stopped_at
        stopped_at = done
        say(stopping=done)
        os.kill(os.getpid(), signal.SIGSTOP)
        TickCommits.commit = to_commit  # type: ignore[method-assign]
        to_commit(commits, outputs)

    while done < ticks or not moved:
        if done == stop_at:
            TickCommits.commit = stop_first  # type: ignore[assignment]
        report = mover.tick(all_of_it=True)
        errors = [topic.error for topic in report.topics.values() if topic.error]
        say(tick=done, rows=report.rows, errors=errors)
        if stop_at is None or (stopped_at is not None and done > stopped_at):
            moved += report.rows
        done += 1


def publish(topics: list[frazil.Topic], stop: threading.Event) -> None:
    while not stop.wait(0.1):
        for topic in topics:
            end = topic.log.visible_end
            topic.publish_many([payload(topic.name, offset) for offset in range(end, end + 20)])


def own(settings: frazil.Settings) -> None:
    with frazil.open(settings) as storage, flight_door(storage, FlightSettings(port=0)) as door:
        topics = [storage.topic(name) for name in TOPICS]
        stop = threading.Event()
        publisher = threading.Thread(target=publish, args=(topics, stop))
        publisher.start()
        mover = new_mover(settings, OwnLogs(storage))
        say(address=door.address)
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while not ended.wait(0.2):  # the other gets a turn
            began_s = time.monotonic()
            report = mover.tick(all_of_it=True)
            errors = [topic.error for topic in report.topics.values() if topic.error]
            say(began_s=began_s, rows=report.rows, errors=errors)
        stop.set()
        publisher.join()
        while mover.tick(all_of_it=True).lag_rows:
            pass
        say(ends={topic.name: topic.stats().end for topic in topics})


def main(folder: Path, source: str, ticks: int, stop_at: int | None) -> None:
    settings = frazil.Settings(data=folder)
    if source == "own":
        own(settings)
    else:
        run(new_mover(settings, RemoteOwner(source)), ticks, stop_at)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), words[1], int(words[2]), int(words[3]) if len(words) > 3 else None)
