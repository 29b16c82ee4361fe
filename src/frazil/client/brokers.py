"""The brokers that a client knows, with a connection to each, and which of them serves a topic.

A client begins at the addresses that its user names. A broker that does not own a topic says who does, and every broker
names all others: so a client goes on after a move, and after the end of the broker that it began at.

Credentials go only to these addresses, and never in clear text to a broker of a cluster that was entered over TLS.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from frazil.client.opening import FlightCalls, is_tls, open_client
from frazil.core.credentials import ClientCredentials
from frazil.core.errors import InvalidInput

_log = logging.getLogger("frazil.client")

ADDRESSES_MAX = 32
OWNERS_MAX = 100_000
DOUBTS_MAX = 3
"""After so many answers without an owner another broker is asked."""
"""Topics whose owner is remembered. Others are found again."""


class Link(NamedTuple):
    """The connection to one broker."""

    address: str
    flight: FlightCalls


class Brokers:
    """Thread-safe. The addresses that a user has named come first."""

    def __init__(self, addresses: Sequence[str], credentials: ClientCredentials) -> None:
        self._credentials = credentials
        self._is_tls = is_tls(addresses[0])
        self._guard = threading.Lock()
        self._named = tuple(addresses)
        self._known = list(addresses)
        self._current = addresses[0]
        self._owners: dict[str, str] = {}
        self._doubts: dict[str, int] = {}
        """How often in a row the broker of a topic did not know who serves it."""
        self._links: dict[str, Link] = {
            address: Link(address, open_client(address, credentials)) for address in addresses
        }

    def of(self, topic: str | None = None) -> Link:
        """Return the broker that serves a topic, as far as it is known; any broker without a topic."""
        with self._guard:
            address = self._current if topic is None else self._owners.get(topic, self._current)
            return self._linked(address)

    def led(self, topic: str, broker_id: str, address: str) -> None:
        """A broker has said where the owner of a topic is."""
        self._check(broker_id, address)
        with self._guard:
            self._own(topic, address)
            self._add(address)

    def announced(self, addresses: Iterable[tuple[str, str]]) -> None:
        """A broker has named all brokers, by id and address. Those that may not be called are left out."""
        for broker_id, address in addresses:
            try:
                self._check(broker_id, address)
            except InvalidInput as error:
                _log.debug("a broker is left out: %s", error)
                continue
            with self._guard:
                self._add(address)

    def lost(self, address: str) -> None:
        """A broker has not answered: ask the next one for its topics."""
        with self._guard:
            self._owners = {topic: owner for topic, owner in self._owners.items() if owner != address}
            if self._current == address:
                self._current = self._known[(self._known.index(address) + 1) % len(self._known)]

    def doubted(self, topic: str, address: str) -> None:
        """A broker does not serve a topic, and does not know who does: after some such answers ask the next one.

        A broker that is cut off from the metadata store does not hear that another one has taken its topics over.
        """
        with self._guard:
            doubts = self._doubts.pop(topic, 0) + 1
            if doubts < DOUBTS_MAX:
                self._doubts[topic] = doubts
            elif address in self._known:
                self._own(topic, self._known[(self._known.index(address) + 1) % len(self._known)])

    def links(self) -> list[Link]:
        with self._guard:
            return list(self._links.values())

    def _own(self, topic: str, address: str) -> None:
        if len(self._owners) >= OWNERS_MAX:
            self._owners.clear()
            self._doubts.clear()
        self._owners[topic] = address

    def _add(self, address: str) -> None:
        if address not in self._known:
            self._known.append(address)

    def _linked(self, address: str) -> Link:
        found = self._links.get(address)
        if found is None:
            given = self._credentials.for_other_brokers
            found = self._links[address] = Link(address, open_client(address, given))
        return found

    def _check(self, broker_id: str, address: str) -> None:
        """Refuse an address that is none, or where credentials would go in clear text."""
        if address in self._named:
            return
        _checked(address)
        if self._is_tls and not is_tls(address):
            raise InvalidInput(
                f"the broker {broker_id} is at {address:.200}, without TLS: it is not called", field="address"
            )


def addresses_of(address: str | Sequence[str]) -> list[str]:
    """Return the addresses that a user names: one, several in a list, or several with commas between.

    A later one without a scheme has that of the first.
    """
    given = address.split(",") if isinstance(address, str) else list(address)
    if not all(isinstance(one, str) for one in given):
        raise InvalidInput("address: must be text, or a list of it", field="address")
    if len(given) == 1:
        return given
    if not 1 <= len(given) <= ADDRESSES_MAX:
        raise InvalidInput(f"address: give 1 to {ADDRESSES_MAX} addresses, not {len(given)}", field="address")
    scheme = given[0].strip().partition("://")[0]
    found = [one if "://" in one else f"{scheme}://{one}" for one in (text.strip() for text in given)]
    for one in found:
        _checked(one)
    if len(set(found)) < len(found):
        raise InvalidInput(f"address: {max(found, key=found.count):.200} is given twice", field="address")
    if len({is_tls(one) for one in found}) > 1:
        raise InvalidInput("address: either all have TLS (grpc+tls://) or none", field="address")
    return found


def _checked(address: str) -> None:
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("grpc", "grpc+tcp", "grpc+tls", "grpcs") and parts.hostname and parts.port
        usable = usable and not (parts.path or parts.query or parts.username)
    except ValueError:
        usable = False
    if not usable:
        hint = "use grpc://host:port, or grpc+tls://host:port for TLS"
        raise InvalidInput(f"{address!r:.200} is no address of a broker; {hint}", field="address")
