"""Calls of Danube's admin tools for topics of other brokers: the owner answers them through the broker that was called.

These tools know one address, and follow no redirect. A call is forwarded with the caller's own token, never with rights
of this broker: a caller that has presented a client certificate gets an error which names the owner. So does one with
the token of this host's data folder, which no other host accepts and which must not leave this one.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from frazil.core.errors import FrazilError, NotOwner, TopicUnavailable
from frazil.core.principal import LOCAL
from frazil.core.settings import Settings
from frazil.doors.admission import who
from frazil.doors.calls import ErrorStatus, Refused, calling
from frazil.doors.client_certificates import certificate_of_call
from frazil.doors.owner_channels import FORWARDED, OwnerChannels
from frazil.node.access.gate import AUTHORIZATION
from frazil.node.request_ids import HEADER, current

SECONDS_MAX = 60.0


class Forwarding:
    """Used on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._channels = OwnerChannels(settings, settings.broker)

    async def call(self, path: str, request: Any, answer: Any, elsewhere: NotOwner) -> Any:
        """Return the owner's answer, or raise its status; raises `NotOwner` if the call cannot be forwarded."""
        context, address = calling.get(), elsewhere.fields["addresses"].get("admin")
        metadata = dict(context.invocation_metadata())
        if address is None or FORWARDED in metadata or certificate_of_call(context.auth_context()) is not None:
            raise elsewhere
        if who() is LOCAL:
            raise elsewhere
        if not self._channels.may_carry(address, credentials=AUTHORIZATION in metadata):
            raise elsewhere
        given = [(FORWARDED, "1"), *((name, metadata[name]) for name in (AUTHORIZATION,) if name in metadata)]
        if (asked := current()) is not None:
            given.append((HEADER, asked.id))
        channel: Any = self._channels.to(address)
        method = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        try:
            return await method(request, metadata=given, timeout=SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            raise _refused(error, elsewhere) from None

    async def close(self) -> None:
        await self._channels.close()


def _refused(error: grpc.aio.AioRpcError, elsewhere: NotOwner) -> Exception:
    """Return the owner's refusal with its status. An owner that does not answer does not serve the topic now."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        owner = elsewhere.fields["broker_id"]
        return TopicUnavailable(elsewhere.fields["topic"], f"its owner {owner} says: {details[:300]}")
    return Refused(FrazilError(details), lambda _: ErrorStatus(code))
