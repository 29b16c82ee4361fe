"""Where the mover learns of logs: from the process that owns them, which alone knows what is durable."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight

from frazil.core.errors import AnotherLeads, InvalidInput, OwnerUnreachable
from frazil.core.own_process import check_grpc
from frazil.log.info import LogInfo, LogList
from frazil.log.storage import Storage
from frazil.pipeline.lease import Lead, MoverName
from frazil.pipeline.told import packed
from frazil.topics.logs import list_logs

ASK_SECONDS_MAX = 5.0


class LogSource(Protocol):
    @property
    def address(self) -> str | None:
        """Where tasks that don't see the files may fetch rows; None if nowhere."""
        ...

    def logs(self) -> list[LogInfo]: ...


class OwnLogs:
    """The logs of a storage that this process owns."""

    def __init__(self, storage: Storage, address: str | None = None) -> None:
        self.address = address
        self._list = LogList(storage)

    def logs(self) -> list[LogInfo]:
        return self._list.read()


class RemoteOwner:
    """Another process that owns logs, through its Flight door."""

    def __init__(self, address: str) -> None:
        check_grpc()
        self.address = address
        try:
            self._client = pa.flight.connect(address)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInput(f"{address} is no address of an owner: use grpc://host:port ({error})") from None

    def logs(self) -> list[LogInfo]:
        return list_logs(self._client, self.address)

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
        answer = self._do("lead", _json({**asdict(mover), "lease_ms": lease_ms}), ASK_SECONDS_MAX)
        return Lead(MoverName(**answer["leader"]), int(answer["left_ms"]))

    def give_up(self, mover: MoverName) -> None:
        self._do("give_up", _json({"id": mover.id}), ASK_SECONDS_MAX)

    def tell(self, mover: MoverName, told: dict[str, Any]) -> None:
        """How the mover stands; `AnotherLeads` if the owner listens to another by now."""
        body = packed({"id": mover.id, "host": mover.host, "pid": mover.pid, **told})
        self._do("tell", body, ASK_SECONDS_MAX)

    def close(self) -> None:
        self._client.close()

    def _do(self, action: str, body: bytes, seconds_max: float) -> Any:
        options = pa.flight.FlightCallOptions(timeout=seconds_max)
        try:
            (result,) = self._client.do_action(pa.flight.Action(action, body), options)
        except pa.flight.FlightServerError as error:
            raise _refusal(error, self.address) from None
        except (pa.flight.FlightError, pa.ArrowException, OSError) as error:
            raise OwnerUnreachable(self.address, str(error).splitlines()[0]) from None
        return json.loads(result.body.to_pybytes())


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _refusal(error: pa.flight.FlightServerError, address: str) -> Exception:
    """What the owner said, as the error that it was there."""
    try:
        fields = json.loads(error.extra_info or b"{}")
    except ValueError:
        fields = {}
    if fields.get("error") == AnotherLeads.code:
        return AnotherLeads(str(fields.get("host")), int(fields.get("pid", 0)))
    return OwnerUnreachable(address, str(fields.get("message") or error).splitlines()[0])
