"""The owner's actions for movers in other processes: grant the lease, and keep the leader's reports.

    action `lead`      {"id", "host", "pid", "lease_ms"}: the current leader, and the duration of its lease
    action `give_up`   {"id"}: at a clean stop
    action `tell`      {"id", "host", "pid", "state", …}: the mover's status, and the end of each log in its table;
                       compressed by zlib
    action `tenants`   the record of each tenant: the mover needs its lifted columns and its freshness

All input is untrusted: every field is checked and limited. Reports are for people and metrics: retention asks the
catalog itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from frazil.core.errors import InvalidInput
from frazil.core.principal import Principal
from frazil.doors.flight.actions import FlightAction, operate
from frazil.doors.flight.requests import FlightRequest
from frazil.node.movers.lease import MoverName
from frazil.node.movers.movers import Movers
from frazil.node.movers.status_codec import BYTES_MAX, unpacked
from frazil.node.telemetry.tenants import Tenant

Text = Annotated[str, Field(max_length=4096)]
Cut = Annotated[str, BeforeValidator(lambda text: text[:4096] if isinstance(text, str) else text)]
"""A message for people: a long one is no reason to refuse the report."""
Name = Annotated[str, Field(min_length=1, max_length=255)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _GiveUp(FlightRequest):
    id: Name


class _Mover(_GiveUp):
    host: Name
    pid: int = Field(gt=0, lt=2**31)

    @property
    def name(self) -> MoverName:
        return MoverName(self.id, self.host, self.pid)


class _Lead(_Mover):
    lease_ms: int = Field(ge=1_000, le=600_000)


class _LastError(FlightRequest):
    message: Cut
    time_us: Count


class _Move(FlightRequest):
    model_config = ConfigDict(extra="ignore")

    start: Count
    end: Count
    started_us: Count
    written_us: Count
    committed_us: Count
    snapshot_id: int | None = Field(ge=-(2**63), lt=2**63)


class _Topic(FlightRequest):
    """Like `TopicReport`, with the mover's error history. Unknown fields of a newer mover are ignored."""

    model_config = ConfigDict(extra="ignore")

    topic: Text
    log_id: Name
    table: Text
    log_end: Count
    table_end: Count
    lag_bytes: float = Field(allow_inf_nan=False)
    lag_rows: int
    error: Cut | None
    error_code: Text | None = None
    last_error: _LastError | None
    moved: _Move | None = None


class _Maintenance(FlightRequest):
    model_config = ConfigDict(extra="ignore")

    state: Literal["off", "waiting", "running", "done", "failed"]
    time_us: Count
    tables: Count
    error: Cut | None


class _StatusReport(_Mover):
    model_config = ConfigDict(extra="ignore")

    state: Literal["starting", "waiting", "running", "stopped"]
    rows: Count
    commits: Count
    failures: Count = 0
    error: Cut | None
    since_us: Count | None = None
    next_try_us: Count | None = None
    topics: dict[Text, _Topic]
    maintenance: _Maintenance | None = None


Parsed = TypeVar("Parsed", bound=BaseModel)


class MoverActions:
    """The actions by name, called by the Flight server with a body."""

    def __init__(self, movers: Movers, tenants: Callable[[], Mapping[str, Tenant]]) -> None:
        """`tenants` reads them as they are stored."""
        self._movers = movers
        self._read_tenants = tenants
        self.by_name = {
            "lead": FlightAction(operate, self._lead),
            "give_up": FlightAction(operate, self._give_up),
            "tell": FlightAction(operate, self._tell),
            "tenants": FlightAction(operate, self._tenants),
        }

    def _lead(self, _: Principal, body: bytes) -> bytes:
        asked = parsed(_Lead, body, "lead")
        lead = self._movers.lead(asked.name, asked.lease_ms)
        return _json({"leader": asdict(lead.leader), "left_ms": lead.left_ms})

    def _give_up(self, _: Principal, body: bytes) -> bytes:
        self._movers.give_up(parsed(_GiveUp, body, "give_up").id)
        return _json({})

    def _tenants(self, _: Principal, __: bytes) -> bytes:
        return _json({name: one.encode().decode() for name, one in self._read_tenants().items()})

    def _tell(self, _: Principal, body: bytes) -> bytes:
        report = parsed(_StatusReport, unpacked(body), "tell")
        self._movers.report(report.name, report.model_dump(exclude={"id", "host", "pid"}))
        return _json({})


def parsed(model: type[Parsed], body: bytes, what: str, bytes_max: int = BYTES_MAX) -> Parsed:
    """Parse a client's body, or raise `InvalidInput` with each wrong field."""
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
