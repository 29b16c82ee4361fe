"""Requests for topics of other brokers: the owner stores them, called with the sender's own credentials.

Exporters know one address, and follow no redirect. The owner identifies the sender again, and checks its rights. What
cannot be forwarded is refused as a request to send again: that of a sender with a client certificate, whose key only
the sender has, and one that was forwarded before.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from frazil.core.errors import NotOwner, TopicUnavailable
from frazil.core.settings import Settings
from frazil.doors.otlp.headers import Export
from frazil.doors.otlp.statuses import DETAILS, OtlpStatus, StatusError, retry_after_ms
from frazil.doors.owner_channels import FORWARDED, OwnerChannels
from frazil.node.access.gate import AUTHORIZATION
from frazil.node.request_ids import HEADER, PARENT, current
from frazil.node.telemetry.telemetry import DATASET_HEADER, TENANT_HEADER
from frazil.telemetry.requests import SERVICES
from frazil.telemetry.responses import Rejected

ADDRESS = "otlp_grpc_advertised"
SECONDS_MAX = 30.0


class OtlpForwarding:
    """Used on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._channels = OwnerChannels(settings, settings.telemetry.otlp)

    async def forward(self, asked: Export, request: bytes, elsewhere: NotOwner) -> Rejected:
        """Return once the owner has stored the request, with what it left out.

        Raises `StatusError` with its refusal, and `NotOwner` if the request cannot be forwarded.
        """
        address = elsewhere.fields["addresses"].get(ADDRESS)
        if address is None or not asked.may_forward:
            raise elsewhere
        if not self._channels.may_carry(address, credentials=asked.authorization is not None):
            raise elsewhere
        given = ((AUTHORIZATION, asked.authorization), (TENANT_HEADER, asked.tenant), (DATASET_HEADER, asked.dataset))
        metadata = [(FORWARDED, "1"), *((name, value) for name, value in given if value is not None)]
        if (current_request := current()) is not None:
            metadata.append((HEADER, current_request.id))
            if current_request.trace_parent is not None:
                metadata.append((PARENT, current_request.trace_parent))
        channel: Any = self._channels.to(address)  # gRPC's types know no calls with serialised messages
        try:
            response: bytes = await channel.unary_unary(f"/{SERVICES[asked.signal]}/Export")(
                request, metadata=metadata, timeout=SECONDS_MAX
            )
        except grpc.aio.AioRpcError as error:
            raise _refused(error, elsewhere) from None
        return Rejected.of_response(response)

    async def close(self) -> None:
        await self._channels.close()


def _refused(error: grpc.aio.AioRpcError, elsewhere: NotOwner) -> Exception:
    """Return the owner's refusal. One without details did not come from it: the owner cannot be reached."""
    details = dict(error.trailing_metadata() or ()).get(DETAILS)
    if isinstance(details, bytes):
        return StatusError(OtlpStatus(error.code().name, error.details() or "", retry_after_ms(details)))
    owner, topic = elsewhere.fields["broker_id"], elsewhere.fields["topic"]
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return TopicUnavailable(topic, f"its owner {owner} cannot be reached: {(error.details() or '')[:300]}")
    return StatusError(OtlpStatus("INTERNAL", f"the owner {owner} failed: {(error.details() or '')[:300]}"))
