"""What tables say about their logs, for display. Nothing is created."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, TableRefused
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_exists, catalog_properties, open_catalog
from frazil.lake.files.store_errors import lake_error
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import read_token

STALL_SECONDS_MAX = 5.0
"""A catalog or store that does not answer for this long counts as unavailable."""
LOOK_SECONDS_MAX = 30.0
LOOKS_MAX = 8
"""Concurrent threads that wait for a catalog, including those whose caller has given up."""

_TOO_MANY = f"catalog: {LOOKS_MAX} earlier questions have no answer yet; see whether it runs"

Found = TypeVar("Found")

_looking = threading.BoundedSemaphore(LOOKS_MAX)


@dataclass(frozen=True, slots=True)
class TableState:
    """A table's committed end of one log. `end` is None if it has none of it."""

    end: int | None
    snapshot_id: int | None
    committed_ms: int | None
    error: str | None = None


NOTHING_YET = TableState(None, None, None)


class TableLook:
    """One look at the lake: each table is loaded once, however many logs share it."""

    def __init__(self, settings: Settings) -> None:
        self._known = catalog_properties(settings)
        self._catalog = open_catalog(settings) if catalog_exists(settings) else None
        self._tables: dict[TableName, Table | None] = {}

    def at(self, name: TableName, log_id: str) -> TableState:
        if name not in self._tables:
            self._tables[name] = self._load(name)
        table = self._tables[name]
        if table is None:
            return NOTHING_YET
        try:
            return _state(table, log_id)
        except TableRefused as error:
            return TableState(None, None, None, error.message)

    def _load(self, name: TableName) -> Table | None:
        if self._catalog is None:
            return None
        try:
            return self._catalog.load_table(name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error


def _state(table: Table, log_id: str) -> TableState:
    token = read_token(table, log_id)
    snapshot = table.current_snapshot()
    return TableState(
        None if token is None else token.end,
        None if snapshot is None else snapshot.snapshot_id,
        None if snapshot is None else snapshot.timestamp_ms,
    )


@dataclass(slots=True)
class LookResult:
    """The result of a bounded look: the states of tables that answered, and why the rest is unknown."""

    states: dict[tuple[TableName, str], TableState] = field(default_factory=dict)
    errors: dict[TableName, str] = field(default_factory=dict)
    error: str | None = None
    """Why the catalog or store did not answer; None if every table answered."""

    def state(self, name: TableName, log_id: str) -> TableState | None:
        return self.states.get((name, log_id))

    def reason(self, name: TableName) -> str | None:
        return self.errors.get(name) or self.error


def look_at(
    settings: Settings,
    wanted: Sequence[tuple[TableName, str]],
    *,
    stall_seconds_max: float = STALL_SECONDS_MAX,
    seconds_max: float = LOOK_SECONDS_MAX,
) -> LookResult:
    """Look at tables as long as the catalog answers. It never raises for an unavailable lake, and never hangs."""
    if not wanted:
        return LookResult()
    if not _looking.acquire(blocking=False):
        return LookResult(error=_TOO_MANY)
    look = _Look(settings, wanted)
    threading.Thread(target=look.work, name="frazil-look", daemon=True).start()
    return look.wait(stall_seconds_max, seconds_max)


@dataclass(slots=True)
class LakeAnswer(Generic[Found]):
    """The result of a question to the lake: a value, or the reason why there is none."""

    value: Found | None = None
    error: str | None = None


def in_time(ask: Callable[[], Found], seconds_max: float = STALL_SECONDS_MAX) -> LakeAnswer[Found]:
    """Ask a catalog or store once, in a thread that is abandoned on timeout."""
    if not _looking.acquire(blocking=False):
        return LakeAnswer(error=_TOO_MANY)
    answer: LakeAnswer[Found] = LakeAnswer()
    done = threading.Event()

    def work() -> None:
        try:
            answer.value = ask()
        except FrazilError as error:
            answer.error = error.message
        except Exception as error:  # noqa: BLE001 - a broken library must not leave the caller without an answer
            answer.error = f"catalog: {type(error).__name__}: {error}"
        finally:
            _looking.release()
            done.set()

    threading.Thread(target=work, name="frazil-look", daemon=True).start()
    return answer if done.wait(seconds_max) else LakeAnswer(error=_no_answer(seconds_max))


def _no_answer(seconds: float) -> str:
    return f"catalog: no answer within {seconds:.0f} s; see whether the catalog and its store run"


class _Look:
    """Loads the tables one after another in its own thread, which is abandoned if a call hangs."""

    def __init__(self, settings: Settings, wanted: Sequence[tuple[TableName, str]]) -> None:
        self._settings = settings
        self._wanted = wanted
        self._changed = threading.Condition()
        self._found = LookResult()
        self._steps = 0
        self._done = False

    def work(self) -> None:
        try:
            look = TableLook(self._settings)
            for name, log_id in self._wanted:
                if self._done:
                    return
                self._look(look, name, log_id)
        except FrazilError as error:
            self._fail(error.message)
        except Exception as error:  # noqa: BLE001 - a broken library must not leave the caller without an answer
            self._fail(f"catalog: {type(error).__name__}: {error}")
        finally:
            _looking.release()
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def wait(self, stall_seconds_max: float, seconds_max: float) -> LookResult:
        clock = SystemClock()
        ends_us = clock.monotonic_us() + int(seconds_max * 1_000_000)
        with self._changed:
            while not self._done:
                before = self._steps
                wait_seconds = min(stall_seconds_max, max(0.0, (ends_us - clock.monotonic_us()) / 1_000_000))
                self._changed.wait_for(functools.partial(self._went_on, before), wait_seconds)
                if not self._went_on(before):
                    self._done = True
                    self._found.error = self._found.error or _no_answer(wait_seconds)
            found = self._found
            return LookResult(dict(found.states), dict(found.errors), found.error)

    def _went_on(self, before: int) -> bool:
        return self._done or self._steps > before

    def _look(self, look: TableLook, name: TableName, log_id: str) -> None:
        state, why = None, None
        try:
            state = look.at(name, log_id)
        except FrazilError as error:
            why = error.message
        with self._changed:
            if state is not None:
                self._found.states[name, log_id] = state
            else:
                self._found.errors[name] = str(why)
                self._found.error = self._found.error or why
            self._steps += 1
            self._changed.notify_all()

    def _fail(self, message: str) -> None:
        with self._changed:
            self._found.error = self._found.error or message
