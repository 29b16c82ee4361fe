"""What the owner of a folder does for movers in other processes: lend the lead, and write down what the leader tells.

    action `lead`      {"id", "host", "pid", "lease_ms"}: who leads now, and for how long
    action `give_up`   {"id"}: at a clean stop
    action `tell`      {"id", "host", "pid", "state", …}: how the mover stands, and how far each table has its log;
                       compressed by zlib

All of it comes from outside: every field is checked, and all is bounded. What is told is for people and metrics:
retention asks the catalog itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.errors import InvalidInput
from frazil.core.settings import Settings
from frazil.pipeline.lease import Leases, MoverName
from frazil.pipeline.status_file import write_status
from frazil.pipeline.told import BYTES_MAX, unpacked
from frazil.topics.guards.moved import mark_moved

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _GiveUp(_Frozen):
    id: Name


class _Mover(_GiveUp):
    host: Name
    pid: int = Field(gt=0, lt=2**31)

    @property
    def name(self) -> MoverName:
        return MoverName(self.id, self.host, self.pid)


class _Lead(_Mover):
    lease_ms: int = Field(ge=1_000, le=600_000)


class _LastError(_Frozen):
    message: Text
    time_us: Count


class _Move(_Frozen):
    model_config = ConfigDict(extra="ignore")

    start: Count
    end: Count
    started_us: Count
    written_us: Count
    committed_us: Count
    snapshot_id: int | None = Field(ge=-(2**63), lt=2**63)


class _Topic(_Frozen):
    """As `TopicReport`, with what the mover remembers of errors. What a newer mover tells beyond it is left out."""

    model_config = ConfigDict(extra="ignore")

    topic: Name
    log_id: Name
    table: Text
    log_end: Count
    table_end: Count
    lag_bytes: float = Field(allow_inf_nan=False)
    lag_rows: int
    error: Text | None
    error_code: Text | None = None
    last_error: _LastError | None
    moved: _Move | None = None


class _Maintenance(_Frozen):
    model_config = ConfigDict(extra="ignore")

    state: Literal["off", "waiting", "running", "done", "failed"]
    time_us: Count
    tables: Count
    error: Text | None


class _Told(_Mover):
    model_config = ConfigDict(extra="ignore")

    state: Literal["starting", "waiting", "running", "stopped"]
    rows: Count
    commits: Count
    failures: Count = 0
    error: Text | None
    since_us: Count | None = None
    next_try_us: Count | None = None
    topics: dict[Text, _Topic]
    maintenance: _Maintenance | None = None


Parsed = TypeVar("Parsed", bound=BaseModel)
OnTold = Callable[[dict[str, Any]], None]


class MoverActions:
    """The actions by name, for the Flight door to call with a body."""

    def __init__(self, settings: Settings, clock: Clock, on_told: OnTold | None = None) -> None:
        """`on_told` is called with what the leader told, once it is written down."""
        self._settings = settings
        self._on_told = on_told
        self._clock = clock
        self._leases = Leases(clock)
        self.by_name: dict[str, Callable[[bytes], bytes]] = {
            "lead": self._lead,
            "give_up": self._give_up,
            "tell": self._tell,
        }

    def _lead(self, body: bytes) -> bytes:
        asked = parsed(_Lead, body, "lead")
        mark_moved(self._settings, LocalDisk(), None)  # from now on rows wait for their tables, also after a restart
        lead = self._leases.ask(asked.name, asked.lease_ms)
        return _json({"leader": asdict(lead.leader), "left_ms": lead.left_ms})

    def _give_up(self, body: bytes) -> bytes:
        self._leases.give_up(parsed(_GiveUp, body, "give_up").id)
        return _json({})

    def _tell(self, body: bytes) -> bytes:
        told = parsed(_Told, unpacked(body), "tell")
        self._leases.check(told.id)
        value = told.model_dump(exclude={"id", "host", "pid"})
        write_status(self._settings, self._clock, told.host, told.pid, value)
        if self._on_told is not None:
            self._on_told(value)
        return _json({})


def parsed(model: type[Parsed], body: bytes, what: str, bytes_max: int = BYTES_MAX) -> Parsed:
    """What a client sent, or `InvalidInput` with each field that is wrong."""
    if len(body) > bytes_max:
        raise InvalidInput(f"the {what} has {len(body)} bytes, more than {bytes_max}")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or what}: {problem['msg']}" for problem in error.errors()[:10]
        )
        raise InvalidInput(f"the {what} is malformed: {problems}") from None


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
