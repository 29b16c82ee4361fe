"""The mover of a served folder, whose tasks run in its own process: no JVM has to start. To be killed at any moment.

python telemetry_mover_child.py FOLDER CONFIG
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from pathlib import Path

from frazil.core.clock import SystemClock
from frazil.core.settings import resolve_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.lease import MoverName, this_host
from frazil.node.movers.status_file import StatusFile
from frazil.node.owner import ServedLogs, open_source
from frazil.pipeline.move.leading import Leadership
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.runner import Runner
from frazil.serve.logs import log_to_stderr
from frazil.testing.jobs import InProcessJobs


def main(folder: Path, config: Path) -> None:
    log_to_stderr(as_json=False)
    settings, clock, stop = resolve_settings(folder, config), SystemClock(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    name = MoverName(str(uuid.uuid4()), this_host(), os.getpid())
    properties, jobs = catalog_properties(settings), InProcessJobs()
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    with open_source(settings) as source:
        assert isinstance(source, ServedLogs)
        status = StatusFile(lambda report: source.tell(name, report), clock)
        leadership = Leadership(source, name, settings.pipeline.lease_ms, clock, status.again)
        leadership.ask()
        leadership.start()
        status.starting()
        mover = Mover(settings, source, tables, jobs, clock, lambda seconds: bool(stop.wait(seconds)))
        Runner(settings, source, mover, jobs, status, leadership).run_until_stopped(stop, lambda _: None)
        leadership.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
