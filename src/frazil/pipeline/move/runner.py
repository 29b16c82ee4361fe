"""The mover process: built from settings, tick after tick, until it is done or stopped.

An error in a tick is reported and retried: the table remembers its end. Only a dead Spark ends it, because it cannot be
started twice in one process; the parent process restarts the mover.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import SparkSession

from frazil.core.backoff import backoff
from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import FrazilError, InvalidSettings, SparkUnavailable
from frazil.core.settings import Settings
from frazil.lake.catalogs.check import check_lake
from frazil.lake.catalogs.error_text import LENGTH_MAX, masked, reason
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.catalogs.spark import check_maintainable
from frazil.lake.tables.store import TableStore
from frazil.node.movers.lease import MoverName, this_host
from frazil.node.movers.log_source import LogSource, OwnLogs, RemoteOwner
from frazil.node.movers.status import lag_bytes
from frazil.node.movers.status_file import StatusFile, write_status
from frazil.node.movers.tick_report import TickReport
from frazil.node.owner import OpenDoor, ServedLogs, check_lake_is_named, open_source
from frazil.pipeline.maintenance.schedule import Schedule
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.lake_wait import wait_for_lake
from frazil.pipeline.move.leading import Leadership
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.topic_rules import TopicsOfSettings
from frazil.pipeline.spark.jobs import SparkJobs
from frazil.pipeline.spark.requirements import check_tasks_reach_store, missing_part
from frazil.pipeline.spark.session import SparkPlace, open_session, spark_place, warm_up

POLL_SECONDS_MIN = 0.05
POLL_SECONDS_MAX = 1.0
POLLS_IN_AN_INTERVAL = 4
BACK_OFF_SECONDS_MIN, BACK_OFF_SECONDS_MAX = 1.0, 30.0

_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Failed|Interrupt)\b(?:: .*)?$")

_log = logging.getLogger("frazil.pipeline")

OnTick = Callable[[TickReport], None]


class Runner:
    def __init__(
        self,
        settings: Settings,
        source: LogSource,
        mover: Mover,
        jobs: JobRunner,
        status: StatusFile,
        leadership: Leadership | None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._mover = mover
        self._jobs = jobs
        self._status = status
        self._leadership = leadership
        self._stands_by_for: MoverName | None = None

    def waiting_bytes(self) -> int:
        return lag_bytes(self._settings, self._source.logs())

    def run_once(self, stop: threading.Event, on_tick: OnTick) -> TickReport:
        """Move everything that was durable at the start; later rows may wait. Returns the sum of the ticks.

        Losing the lead meanwhile does not end it: rows that another mover has moved are found in the tables.
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
                break  # the remaining topics have errors, which are in the report
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
                delay_s = backoff(failures, first=BACK_OFF_SECONDS_MIN, limit=BACK_OFF_SECONDS_MAX)
                _log.error("%s; retry in %.0f s", error, delay_s)
                stop.wait(delay_s)
                continue
            failures = 0
            if not report.rows:
                stop.wait(poll_seconds(self._settings))

    def _may_move(self) -> bool:
        """Whether we lead, or own the folder. A change of the leader is logged once."""
        leadership = self._leadership
        if leadership is None or leadership.leads:
            if self._stands_by_for is not None:
                _log.info("this mover leads now")
                self._stands_by_for = None
                self._mover.forget()
                self._status.starting()
            return True
        if leadership.leader != self._stands_by_for and leadership.leader is not None:
            self._stands_by_for = leadership.leader
            leader = leadership.leader
            _log.info("standby: the mover with process %d on %s leads", leader.pid, leader.host)
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
        """Distinguish a failed job from a dead Spark by running an empty job."""
        why = masked(_said(error), catalog_properties(self._settings))
        if not self._jobs.is_alive():
            return SparkUnavailable(f"it has died ({why})")
        return FrazilError(f"the job of a tick failed: {why}")


def _said(error: Exception) -> str:
    """Return the message of an error: the last line of a worker's Python stack trace, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else f"{type(error).__name__}: {lines[0]}")[:LENGTH_MAX]


def poll_seconds(settings: Settings) -> float:
    """Return how often to ask for the logs: often enough for `flush_interval_ms`."""
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
    """Try what fails quickly first: the folder, the lead of a single run, the lake, and only then Spark.

    An unavailable lake is an error of a single run; a permanent mover waits for it, and reports so.

    `maintain` is the command for table maintenance, which the mover runs periodically.
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
        status = StatusFile(_reporting(settings, source, name, clock), clock)
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
                    read_tenants = source.tenants if isinstance(source, RemoteOwner) else None
                    rules = TopicsOfSettings(settings, clock, read_tenants)
                    waits = functools.partial(_wait, stop)
                    mover = Mover(settings, source, tables, jobs, clock, waits, rules.of, rules.has_tenant)
                    with _kept(settings, maintain, clock, leadership, status):
                        yield Runner(settings, source, mover, jobs, status, leadership)
            except BaseException as error:
                status.stopped(error.message if isinstance(error, FrazilError) else None)
                raise
            status.stopped()


def _leads(leadership: Leadership | None) -> Callable[[], bool]:
    """Return whether this mover leads. The owner of the folder always does."""
    return lambda: leadership is None or leadership.leads


def _reporting(
    settings: Settings, source: OwnLogs | ServedLogs | RemoteOwner, name: MoverName, clock: Clock
) -> Callable[[dict[str, Any]], None]:
    if isinstance(source, OwnLogs):
        return lambda report: write_status(settings, clock, name.host, name.pid, report)
    return lambda report: source.tell(name, report)


@contextlib.contextmanager
def _leading(
    settings: Settings,
    source: OwnLogs | ServedLogs | RemoteOwner,
    name: MoverName,
    clock: Clock,
    status: StatusFile,
    once: bool,
) -> Iterator[Leadership | None]:
    """Return the leadership; None for the owner of the folder, which leads. A single run must get the lead at once."""
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
    """Run table maintenance meanwhile, if the settings enable it and Spark can open the tables."""
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
        with contextlib.suppress(Exception):  # a dead session can't be stopped, and need not be
            session.stop()
