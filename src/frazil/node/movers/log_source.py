"""The logs to move, as reported by the process that owns them: only the owner knows what is durable."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Protocol

from frazil.client.connection import act_on
from frazil.client.opening import open_client
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.errors import AnotherLeads, FrazilError, OwnerUnreachable, PermissionDenied, Unauthenticated
from frazil.log.info import LogInfo, LogList
from frazil.log.storage import Storage
from frazil.node.movers.lease import Lead, MoverName
from frazil.node.movers.status_codec import packed
from frazil.node.telemetry.tenants import Tenant
from frazil.node.tiers.logs import list_logs

ASK_SECONDS_MAX = 5.0
TELL_SECONDS_MAX = 30.0
"""A report of many topics takes seconds on a busy host."""


class LogSource(Protocol):
    @property
    def address(self) -> str | None:
        """The address where tasks without access to the files fetch rows; None if there is none."""
        ...

    @property
    def credentials(self) -> ClientCredentials:
        """What those tasks present there. It contains secrets."""
        ...

    def logs(self) -> list[LogInfo]: ...


class OwnLogs:
    """The logs of a storage that this process owns."""

    def __init__(
        self, storage: Storage, address: str | None = None, credentials: ClientCredentials = NO_CREDENTIALS
    ) -> None:
        self.address = address
        self.credentials = credentials
        self._list = LogList(storage)

    def logs(self) -> list[LogInfo]:
        return self._list.read()


class RemoteOwner:
    """Another process that owns logs, through its Flight server."""

    def __init__(self, address: str, credentials: ClientCredentials = NO_CREDENTIALS) -> None:
        self.address = address
        self._credentials = credentials
        self._client = open_client(address, credentials)

    @property
    def credentials(self) -> ClientCredentials:
        return self._credentials.for_tasks()

    def logs(self) -> list[LogInfo]:
        return list_logs(self._client, self.address)

    def tenants(self) -> dict[str, Tenant]:
        """Return the tenants as the owner has stored them. An owner that does not say is unavailable: without their
        lifted attributes, tables would lack columns."""
        found = self._do("tenants", b"", ASK_SECONDS_MAX)
        return {name: Tenant.decode(name, record.encode()) for name, record in found.items()}

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead:
        answer = self._do("lead", _json({**asdict(mover), "lease_ms": lease_ms}), ASK_SECONDS_MAX)
        return Lead(MoverName(**answer["leader"]), int(answer["left_ms"]))

    def give_up(self, mover: MoverName) -> None:
        self._do("give_up", _json({"id": mover.id}), ASK_SECONDS_MAX)

    def tell(self, mover: MoverName, report: dict[str, Any]) -> None:
        """Report the mover's status; raises `AnotherLeads` if another mover leads by now."""
        body = packed({"id": mover.id, "host": mover.host, "pid": mover.pid, **report})
        self._do("tell", body, TELL_SECONDS_MAX)

    def close(self) -> None:
        self._client.close()

    def _do(self, action: str, body: bytes, seconds_max: float) -> Any:
        """Call an action of the owner. Other errors than those of the lease mean that the owner is unavailable."""
        try:
            return act_on(self._client, self.address, action, body, seconds_max)
        except (AnotherLeads, OwnerUnreachable, Unauthenticated, PermissionDenied):
            raise
        except FrazilError as error:
            raise OwnerUnreachable(self.address, error.message.splitlines()[0]) from None


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
