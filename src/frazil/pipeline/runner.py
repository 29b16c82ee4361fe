"""The mover as a process runs it: built from settings, tick after tick, until it is done or told to stop.

What goes wrong in a tick is told and tried again: the table remembers how far it is. Only a Spark that is dead
ends it, for it can't be started a second time in one process; whoever started us starts us anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import FrazilError, InvalidSettings, SparkUnavailable
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.check import check_lake
from frazil.lake.reasons import LENGTH_MAX, masked, reason
from frazil.lake.spark_catalog import check_maintainable
from frazil.lake.store import TableStore
from frazil.pipeline.lake_wait import wait_for_lake
from frazil.pipeline.leading import Leadership
from frazil.pipeline.lease import MoverName, this_host
from frazil.pipeline.mover import Mover
from frazil.pipeline.owner import OpenDoor, ServedLogs, check_lake_is_named, open_source
from frazil.pipeline.requirements import check_tasks_reach_store, missing_part
from frazil.pipeline.schedule import Schedule
from frazil.pipeline.source import LogSource, OwnLogs, RemoteOwner
from frazil.pipeline.spark import SparkPlace, is_alive, open_session, spark_place, warm_up
from frazil.pipeline.spark_jobs import SparkJobs
from frazil.pipeline.status import lag_bytes
from frazil.pipeline.status_file import StatusFile, write_status
from frazil.pipeline.tick_report import TickReport

POLL_SECONDS_MIN = 0.05
POLL_SECONDS_MAX = 1.0
POLLS_IN_AN_INTERVAL = 4
BACK_OFF_SECONDS_MAX = 30.0

_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Failed|Interrupt)\b(?:: .*)?$")

_log = logging.getLogger("frazil.pipeline")

OnTick = Callable[[TickReport], None]


class Runner:
    def __init__(
        self,
        settings: Settings,
        source: LogSource,
        mover: Mover,
        session: SparkSession,
        status: StatusFile,
        leadership: Leadership | None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._mover = mover
        self._session = session
        self._status = status
        self._leadership = leadership
        self._stands_by_for: MoverName | None = None

    def waiting_bytes(self) -> int:
        return lag_bytes(self._settings, self._source.logs())

    def run_once(self, stop: threading.Event, on_tick: OnTick) -> TickReport:
        """Move all that was durable at the start; what comes meanwhile may wait. Returns the sum of the ticks.

        A lead that is lost meanwhile does not end it: what another has moved is found in the tables.
        """
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
            if not self._may_move():
                stop.wait(poll_seconds(self._settings))
                continue
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

    def _may_move(self) -> bool:
        """Whether we lead, or own the folder. Who leads is said once for each time that it changes."""
        leadership = self._leadership
        if leadership is None or leadership.leads:
            if self._stands_by_for is not None:
                _log.info("takes over: this mover leads now")
                self._stands_by_for = None
                self._mover.forget()
                self._status.starting()
            return True
        if leadership.leader != self._stands_by_for and leadership.leader is not None:
            self._stands_by_for = leadership.leader
            leader = leadership.leader
            _log.info("stands by: the mover with process %d on %s leads", leader.pid, leader.host)
        return False

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
        why = masked(_said(error), catalog_properties(self._settings))
        if not is_alive(self._session):
            return SparkUnavailable(f"it has died ({why})")
        return FrazilError(f"the job of a tick failed: {why}")


def _said(error: Exception) -> str:
    """What a worker's Python raised ends its stack trace; other errors begin with what they say."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else f"{type(error).__name__}: {lines[0]}")[:LENGTH_MAX]


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
    owner: str | None = None,
    open_door: OpenDoor | None = None,
    maintain: Sequence[str] | None = None,
    once: bool = False,
    clock: Clock | None = None,
) -> Iterator[Runner]:
    """What fails quickly is tried first: the folder, the lead of a single run, the lake, and only then Spark.

    A lake that is away is the error of a single run; a mover that stays waits for it, and tells so.

    `maintain` is the command that keeps the tables, for the mover to run now and then.
    """
    clock = clock or SystemClock()
    check_tasks_reach_store(settings)
    place = spark_place(master, remote)
    missing = missing_part() if place.remote is None else None
    if missing is not None:
        raise SparkUnavailable(missing)
    if owner is not None:
        check_lake_is_named(settings)
    name = MoverName(str(uuid.uuid4()), this_host(), os.getpid())
    with open_source(settings, owner, open_door if place.elsewhere else None) as source:
        status = StatusFile(_telling(settings, source, name, clock), clock)
        with _leading(settings, source, name, clock, status, once) as leadership:
            leads = _leads(leadership)
            if leads():
                status.starting()
            try:
                if once:
                    check_lake(settings)
                else:
                    wait_for_lake(lambda: check_lake(settings), status, leads, stop, clock)
                with _session(settings, place) as session:
                    properties = catalog_properties(settings)
                    tables = TableStore(
                        open_catalog(settings),
                        properties.get("warehouse"),
                        properties,
                        settings.maintenance.snapshots_max,
                        clock,
                    )
                    jobs = SparkJobs(session, settings)
                    mover = Mover(settings, source, tables, jobs, clock, lambda seconds: _wait(stop, seconds))
                    with _kept(settings, maintain, clock, leadership, status):
                        yield Runner(settings, source, mover, session, status, leadership)
            except BaseException as error:
                status.stopped(error.message if isinstance(error, FrazilError) else None)
                raise
            status.stopped()


def _leads(leadership: Leadership | None) -> Callable[[], bool]:
    """Whoever owns the folder leads."""
    return lambda: leadership is None or leadership.leads


def _telling(
    settings: Settings, source: OwnLogs | ServedLogs | RemoteOwner, name: MoverName, clock: Clock
) -> Callable[[dict[str, Any]], None]:
    if isinstance(source, OwnLogs):
        return lambda told: write_status(settings, clock, name.host, name.pid, told)
    return lambda told: source.tell(name, told)


@contextlib.contextmanager
def _leading(
    settings: Settings,
    source: OwnLogs | ServedLogs | RemoteOwner,
    name: MoverName,
    clock: Clock,
    status: StatusFile,
    once: bool,
) -> Iterator[Leadership | None]:
    """Whoever owns the folder leads. Others ask its owner, and a single run must have the lead at once."""
    if isinstance(source, OwnLogs):
        yield None
        return
    leadership = Leadership(source, name, settings.pipeline.lease_ms, clock, status.again)
    if once:
        leadership.must_lead()
    else:
        leadership.ask()
    leadership.start()
    try:
        yield leadership
    finally:
        leadership.close()


@contextlib.contextmanager
def _kept(
    settings: Settings,
    maintain: Sequence[str] | None,
    clock: Clock,
    leadership: Leadership | None,
    status: StatusFile,
) -> Iterator[None]:
    """The tables are kept meanwhile, where the settings want it and Spark can open them."""
    interval_seconds = settings.maintenance.interval_seconds
    if maintain is None or not interval_seconds:
        yield
        return
    try:
        check_maintainable(settings)
    except InvalidSettings as error:
        status.maintained({"state": "off", "time_us": clock.now_us(), "tables": 0, "error": error.message})
        yield
        return
    schedule = Schedule(maintain, interval_seconds, clock, _leads(leadership), status.maintained)
    schedule.start()
    try:
        yield
    finally:
        schedule.close()


def _wait(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)


@contextlib.contextmanager
def _session(settings: Settings, place: SparkPlace) -> Iterator[SparkSession]:
    try:
        session = open_session(place)
        warm_up(session)
    except Exception as error:
        raise SparkUnavailable(reason(error, catalog_properties(settings))) from error
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # a dead one can't be stopped, and need not be
            session.stop()
