"""The mover as a process runs it: built from settings, tick after tick, until it is done or told to stop.

What goes wrong in a tick is told and tried again: the table remembers how far it is. Only a Spark that is dead
ends it, for it can't be started a second time in one process; whoever started us starts us anew.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession

from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import FrazilError, SparkUnavailable
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.check import check_lake
from frazil.lake.reasons import reason
from frazil.lake.store import TableStore
from frazil.pipeline.mover import Mover, TickReport
from frazil.pipeline.owner import open_source
from frazil.pipeline.requirements import missing_part
from frazil.pipeline.source import LogSource
from frazil.pipeline.spark import open_session, warm_up
from frazil.pipeline.status import lag_bytes
from frazil.pipeline.status_file import StatusFile

POLL_SECONDS_MIN = 0.05
POLL_SECONDS_MAX = 1.0
POLLS_IN_AN_INTERVAL = 4
BACK_OFF_SECONDS_MAX = 30.0

_log = logging.getLogger("frazil.pipeline")

OnTick = Callable[[TickReport], None]


class Runner:
    def __init__(
        self, settings: Settings, source: LogSource, mover: Mover, session: SparkSession, status: StatusFile
    ) -> None:
        self._settings = settings
        self._source = source
        self._mover = mover
        self._session = session
        self._status = status

    def waiting_bytes(self) -> int:
        return lag_bytes(self._settings, self._source.logs())

    def run_once(self, stop: threading.Event, on_tick: OnTick) -> TickReport:
        """Move all that was durable at the start; what comes meanwhile may wait. Returns the sum of the ticks."""
        total = TickReport()
        wanted: dict[str, int] | None = None
        before: dict[str, int] = {}
        while not stop.is_set():
            report = self._tick(all_of_it=True)
            on_tick(report)
            total = TickReport(total.rows + report.rows, total.commits + report.commits, report.topics)
            ends = {name: topic.table_end for name, topic in report.topics.items()}
            if wanted is None:
                wanted = {name: topic.log_end for name, topic in report.topics.items()}
            if all(ends.get(name, end) >= end for name, end in wanted.items()):
                break
            if not report.rows and ends == before:
                break  # what is left has errors of its own: they are in the report
            before = ends
        return total

    def run_until_stopped(self, stop: threading.Event, on_tick: OnTick) -> None:
        failures = 0
        while not stop.is_set():
            try:
                report = self._tick()
                on_tick(report)
            except SparkUnavailable:
                raise
            except FrazilError as error:
                failures += 1
                self._status.failed(error.message)
                delay_s = min(BACK_OFF_SECONDS_MAX, 0.5 * 2 ** min(failures, 10))
                _log.error("%s; tried again in %.0f s", error, delay_s)
                stop.wait(delay_s)
                continue
            failures = 0
            if not report.rows:
                stop.wait(poll_seconds(self._settings))

    def _tick(self, *, all_of_it: bool = False) -> TickReport:
        try:
            report = self._mover.tick(all_of_it=all_of_it)
        except FrazilError:
            raise
        except Exception as error:
            raise self._spark_error(error) from error
        self._status.ticked(report)
        return report

    def _spark_error(self, error: Exception) -> FrazilError:
        """Whether it was this job or Spark itself: a job without work tells."""
        why = reason(error, catalog_properties(self._settings))
        try:
            warm_up(self._session)
        except Exception:  # noqa: BLE001 - whatever it is, Spark can't run a job
            return SparkUnavailable(f"it has died ({why})")
        return FrazilError(f"the job of a tick failed: {why}")


def poll_seconds(settings: Settings) -> float:
    """How often the logs are asked for: often enough that `flush_interval_ms` means what it says."""
    wanted = min(writer.flush_interval_ms for writer in settings.writers()) / 1_000 / POLLS_IN_AN_INTERVAL
    return min(POLL_SECONDS_MAX, max(POLL_SECONDS_MIN, wanted))


@contextlib.contextmanager
def open_runner(
    settings: Settings,
    stop: threading.Event,
    *,
    master: str | None = None,
    remote: str | None = None,
    clock: Clock | None = None,
) -> Iterator[Runner]:
    """What fails quickly is tried first: the folder, the lake, and only then Spark."""
    clock = clock or SystemClock()
    missing = missing_part() if remote is None else None
    if missing is not None:
        raise SparkUnavailable(missing)
    with open_source(settings) as source:
        check_lake(settings)
        status = StatusFile(settings, clock)
        status.starting()
        try:
            with _session(settings, master, remote) as session:
                properties = catalog_properties(settings)
                tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
                mover = Mover(settings, source, tables, session, clock, lambda seconds: _wait(stop, seconds))
                yield Runner(settings, source, mover, session, status)
        except BaseException as error:
            status.stopped(error.message if isinstance(error, FrazilError) else None)
            raise
        status.stopped()


def _wait(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)


@contextlib.contextmanager
def _session(settings: Settings, master: str | None, remote: str | None) -> Iterator[SparkSession]:
    try:
        session = open_session(master, remote)
        warm_up(session)
    except Exception as error:
        raise SparkUnavailable(reason(error, catalog_properties(settings))) from error
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # a dead one can't be stopped, and need not be
            session.stop()
