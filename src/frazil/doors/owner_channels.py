"""Channels to the same door of other brokers, for calls that are forwarded to the owner of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc
import grpc.aio

from frazil.core.credentials import credentials_of
from frazil.core.settings import Settings
from frazil.doors.tls import tls_of

if TYPE_CHECKING:
    from frazil.doors.tls import DoorSettings

FORWARDED = "x-frazil-forwarded"
"""A call that was forwarded once is not forwarded again: while a topic moves, two brokers may name each other."""


class OwnerChannels:
    """Used on one event loop."""

    def __init__(self, settings: Settings, door: DoorSettings) -> None:
        self._settings = settings
        self._door = door
        self._channels: dict[str, grpc.aio.Channel] = {}

    def may_carry(self, address: str, *, credentials: bool) -> bool:
        """Whether a call may go to an address: credentials that came over TLS never go on in clear text."""
        return not credentials or address.startswith("https:") or not tls_of(self._settings, self._door).is_on

    def to(self, address: str) -> grpc.aio.Channel:
        found = self._channels.get(address)
        if found is None:
            parts = urlsplit(address)
            if parts.scheme == "https":
                ca = credentials_of(self._settings.client).ca
                found = grpc.aio.secure_channel(parts.netloc, grpc.ssl_channel_credentials(ca))
            else:
                found = grpc.aio.insecure_channel(parts.netloc)
            self._channels[address] = found
        return found

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
