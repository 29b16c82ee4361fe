"""The logs of a query in a cluster: those of this broker, and those of other brokers, fetched from their owners.

The broker of this host says, by the topic's record as it is now, who has which log. Each owner says what is durable of
its logs, and sends the rows that are neither in a table nor in objects. It is asked with the credentials of the query's
caller, and checks its rights: a broker has no rights of its own at another one. An owner that cannot be asked ends the
query: it never goes on with the rows of the others.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight

from frazil.client.connection import act_on, delay_seconds, error_of
from frazil.client.opening import is_tls, open_client
from frazil.core.credentials import ClientCredentials, credentials_of
from frazil.core.errors import InvalidName, NotOwner, OwnerUnreachable, ServerNeeded, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.log.info import LogInfo, from_json
from frazil.node.tiers.logs import FileView, OwnerView, open_view, read_log

ASK_SECONDS_MAX = 10.0
LOOKS_MAX = 5
"""Attempts to find a topic while it moves: about two seconds."""


@dataclass(frozen=True, slots=True)
class ForwardedCaller:
    """With which token a query for a server asks other brokers: that of its caller."""

    token: str | None = None
    needs_tls: bool = False
    """The token came over TLS: it never goes on in clear text."""


@dataclass(frozen=True, slots=True)
class OtherBrokers:
    """How a query asks other brokers. Without credentials it does not."""

    credentials: ClientCredentials | None
    needs_tls: bool = False

    @classmethod
    def of_settings(cls, settings: Settings) -> OtherBrokers:
        """For a query of this host's user: with the credentials that the settings give to clients."""
        return cls(credentials_of(settings.client))

    @classmethod
    def of_caller(cls, settings: Settings, caller: ForwardedCaller | None) -> OtherBrokers:
        """For a query of a server's client. None: a caller whose credentials this process cannot present."""
        if caller is None:
            return cls(None)
        return cls(ClientCredentials(token=caller.token, ca=credentials_of(settings.client).ca), caller.needs_tls)


class ClusterLogs:
    """A `LogView` that finds the logs of one topic at a time, wherever they are."""

    def __init__(self, here: OwnerView, settings: Settings, others: OtherBrokers) -> None:
        self._here = here
        self._settings = settings
        self._others = others
        self._owners: dict[str, str] = {}
        """The address of the owner, by the id of a log of another broker."""

    def logs(self) -> list[LogInfo]:
        return self._here.logs()

    def of(self, base: TopicName) -> list[LogInfo]:
        """Return the logs of a topic or of all its partitions; raises `TopicUnavailable`, or `NotOwner` if the caller
        must ask another broker itself."""
        try:
            TopicName.parse(str(base))
        except InvalidName:
            return []
        for attempt in range(1, LOOKS_MAX):
            try:
                return self._find(base)
            except TopicUnavailable:  # it moves, or its owner starts
                threading.Event().wait(delay_seconds(attempt))
        return self._find(base)

    def read(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        owner = self._owners.get(info.log_id)
        try:
            if owner is None:
                yield from self._here.read(info, wanted)
            else:
                credentials = self._credentials_for(info.topic, "", owner)
                yield from read_log(self._settings, owner, info, wanted, credentials)
        except pa.flight.FlightError as error:
            raise error_of(error, owner or self._here.address) from None

    def read_objects(self, info: LogInfo, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        return self._here.read_objects(info, wanted)

    def _find(self, base: TopicName) -> list[LogInfo]:
        asked = self._here.act("topic_logs", {"topic": str(base), "files": True}, ASK_SECONDS_MAX)
        found = [from_json(one) for one in asked["here"]]
        for one in found:
            self._owners.pop(one.log_id, None)
        theirs: dict[str, dict[TopicName, LogInfo]] = {}
        for place in asked["elsewhere"]:
            topic, broker_id, address = TopicName.parse(place["topic"]), place["broker_id"], place["flight"]
            if broker_id not in theirs:
                theirs[broker_id] = self._ask(base, topic, broker_id, address)
            info = theirs[broker_id].get(topic)
            if info is None:
                raise TopicUnavailable(str(topic), f"the broker {broker_id} does not serve it; it may be moving")
            self._owners[info.log_id] = address
            found.append(info)
        return found

    def _ask(self, base: TopicName, topic: TopicName, broker_id: str, address: str) -> dict[TopicName, LogInfo]:
        body = json.dumps({"topic": str(base)}).encode()
        with contextlib.closing(open_client(address, self._credentials_for(topic, broker_id, address))) as client:
            try:
                asked = act_on(client, address, "topic_logs", body, ASK_SECONDS_MAX)
            except OwnerUnreachable as error:
                reason = f"its broker {broker_id} cannot be reached: {error.message}"
                raise TopicUnavailable(str(topic), reason) from None
        return {one.topic: one for one in map(from_json, asked["here"])}

    def _credentials_for(self, topic: TopicName, broker_id: str, address: str) -> ClientCredentials:
        found = self._others.credentials
        if found is None or (self._others.needs_tls and found.has_token and not is_tls(address)):
            raise NotOwner(str(topic), broker_id, {"flight": address})
        return found


@contextlib.contextmanager
def open_query_logs(
    settings: Settings, others: OtherBrokers | None = None
) -> Iterator[FileView | OwnerView | ClusterLogs]:
    """Open the logs of a query on a data folder. In a cluster the broker of the folder must run: it knows the others.

    `others` are by default the credentials of the settings.
    """
    with open_view(settings) as view:
        if not settings.cluster.enabled:
            yield view
        elif isinstance(view, OwnerView):
            yield ClusterLogs(view, settings, others or OtherBrokers.of_settings(settings))
        else:
            raise ServerNeeded(str(settings.data))
