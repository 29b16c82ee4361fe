"""Addresses and sockets of doors, and errors of unavailable ones."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.core.errors import ListenFailed
from frazil.node.movers.lease import this_host

if TYPE_CHECKING:
    from frazil.doors.tls import DoorTls

Opened = TypeVar("Opened")

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared only
_log = logging.getLogger("frazil.serve")


def host_and_port(host: str, port: int) -> str:
    """Format an address: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_everywhere(host: str) -> bool:
    return host in _EVERYWHERE


def local(host: str) -> str:
    """Return the address for clients on this host: loopback if the door listens on all interfaces."""
    return _EVERYWHERE.get(host, host)


def local_address(address: str) -> str:
    """Return host:port for clients on this host."""
    host, _, port = address.rpartition(":")
    return host_and_port(local(host.strip("[]")), int(port))


def for_others(host: str, address: str, advertised: str | None = None) -> str:
    """Return host:port for other hosts: what the settings say, else where it listens, or the host's name if it listens
    on all interfaces at this address."""
    if advertised is not None or not is_everywhere(host):
        return advertised or address
    return host_and_port(this_host(), int(address.rpartition(":")[2]))


def listen_or_free(listen: Callable[[int], Opened], host: str, port: int, setting: str, *, is_set: bool) -> Opened:
    """Call `listen` with the port. If it is in use and only the default, take a free one, so that a second server can
    run on the host; a port that the settings have must be free."""
    if is_set or port == 0:
        return listen(port)
    try:
        check_free(host, port, setting)
        return listen(port)
    except ListenFailed as error:
        _log.warning("%s; a free port is taken instead", error)
        return listen(0)


@contextlib.contextmanager
def listening(host: str, port: int, setting: str) -> Iterator[socket.socket]:
    """Return a listening socket; raises `ListenFailed` with the setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ListenFailed(host, port, error.strerror or str(error), setting) from None
    with found:
        yield found


def check_free(host: str, port: int, setting: str) -> None:
    """Raise `ListenFailed` if the port is in use; gRPC itself would also print a line to stderr."""
    with listening(host, port, setting):
        pass


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return host_and_port(host, port)


def listen_grpc(server: Any, host: str, port: int, setting: str, tls: DoorTls | None = None) -> int:
    """Listen with a gRPC server, and return the port; raises `ListenFailed` with the setting."""
    address, credentials = host_and_port(host, port), None if tls is None else tls.grpc_credentials()
    try:
        if credentials is not None:
            return int(server.add_secure_port(address, credentials))
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        _log.debug("gRPC failed to listen: %s", error)
        raise ListenFailed(host, port, "in use, or not an address of this host", setting) from None
