"""Flight infos for stock clients: the topics, their columns, and tickets for their rows.

    list_flights      one FlightInfo for each topic; the criteria are a prefix of the names
    get_flight_info   for a path; or for a command {"read": …}, see `frazil.doors.flight.get.reading`
    get_schema        the columns that `do_get` returns, for the same descriptors

A FlightInfo has the current end of the topic. Its ticket reads up to there, through all tiers. A path of a topic with
partitions gives one ticket for each of them. In a cluster, `list_flights` has the topics of this broker, and the ticket
for a partition of another broker has the owner's address.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.cluster import flight_address
from frazil.core.errors import (
    CorruptLog,
    InvalidInput,
    NotOwner,
    PermissionDenied,
    TopicNotFound,
    TopicUnavailable,
)
from frazil.core.names import TopicName
from frazil.core.partitions import topic_or_partitions
from frazil.core.principal import Principal
from frazil.core.put_notes import MESSAGE_BYTES_MAX
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.core.settings import FlightSettings
from frazil.doors.admission import who
from frazil.doors.calls import Context, write_in_time
from frazil.doors.flight import flight_pb2 as pb
from frazil.doors.flight.calls import Calls
from frazil.doors.flight.get.reading import TICKET_BYTES_MAX, Read, ReadTicket, end_of, is_read
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.targets import Targets
from frazil.doors.flight.topics import check_log
from frazil.node.node import Node
from frazil.node.types.log import TopicLog

CRITERIA_BYTES_MAX = 1024
LISTED_MAX = 64
"""Topics that are described in one thread call, so that other calls get a thread in between."""
UNKNOWN = -1

_log = logging.getLogger("frazil.serve")


class Infos:
    def __init__(self, node: Node, settings: FlightSettings, calls: Calls, targets: Targets) -> None:
        self._node = node
        self._settings = settings
        self._calls = calls
        self._targets = targets

    def rights(self, descriptor: pb.FlightDescriptor) -> Sequence[Right]:
        """The rights to describe what a descriptor names. Its ticket is checked again when it is used."""
        return (Right(Action.DESCRIBE, access.topic(self._topic_of(descriptor))),)

    async def flights(self, criteria: pb.Criteria, context: Context) -> None:
        prefix = _prefix(criteria.expression)
        caller, tenant = who(), self._targets.tenant()
        within = f"/{tenant}." if self._targets.is_tenant_given() else "/"
        names = await self._calls.blocking(self._node.topic_names, caller)
        wanted = [name for name in names if name.startswith(prefix) and name.startswith(within)]
        for first in range(0, len(wanted), LISTED_MAX):
            self._calls.check_open()
            for info in await self._calls.blocking(self._listed, caller, tenant, wanted[first : first + LISTED_MAX]):
                await write_in_time(context, info)

    async def info(self, descriptor: pb.FlightDescriptor) -> pb.FlightInfo:
        return await self._calls.blocking(self._info, who(), descriptor, self._topic_of(descriptor))

    async def schema(self, descriptor: pb.FlightDescriptor) -> pb.SchemaResult:
        return await self._calls.blocking(self._schema, who(), descriptor, self._topic_of(descriptor))

    def _topic_of(self, descriptor: pb.FlightDescriptor) -> str:
        if descriptor.path:
            return str(self._targets.of_path(descriptor.path, Action.DESCRIBE).topic)
        wanted = _read_of(descriptor)
        return self._targets.named(wanted.topic, wanted.dataset, wanted.table, Action.DESCRIBE)

    def _listed(self, caller: Principal, tenant: str | None, names: Sequence[str]) -> list[pb.FlightInfo]:
        """Describe topics. Those that were deleted or hidden meanwhile or cannot be opened are left out."""
        found = []
        for name in names:
            try:
                log = self._log_of(caller, name)
                found.append(self._info_of([log], _by_path(self._targets.path_of(log.name, tenant))))
            except (TopicNotFound, NotOwner, TopicUnavailable, PermissionDenied, CorruptLog, OSError) as error:
                _log.debug("%s is left out of the list of flights: %s", name, error)
        return found

    def _info(self, caller: Principal, descriptor: pb.FlightDescriptor, topic: str) -> pb.FlightInfo:
        if descriptor.path:
            return self._info_of_path(caller, TopicName.parse(topic), _by_path(descriptor.path))
        wanted = _read_of(descriptor)
        log = self._log_of(caller, topic)
        check_log(log, wanted.log_id, wanted.start if isinstance(wanted.start, int) else None)
        end = end_of(log, wanted)
        if not wanted.follow:
            end = log.flush() if end is None else min(end, log.flush())
        ticket = wanted.of_topic(topic).model_copy(update={"log_id": log.log_id, "end": end, "notes": False})
        return pb.FlightInfo(
            schema=_schema_bytes(log.schema),
            flight_descriptor=descriptor,
            endpoint=[_endpoint(ticket)],
            total_records=UNKNOWN,
            total_bytes=UNKNOWN,
            ordered=True,
            app_metadata=self._metadata(log, end),
        )

    def _info_of_path(self, caller: Principal, name: TopicName, descriptor: pb.FlightDescriptor) -> pb.FlightInfo:
        """Describe a topic, or its partitions: those of other brokers with the address of their owner."""
        owning, names = self._calls.owning, self._names_of(caller, name)
        if names == [name]:
            owning.check(name)
        elsewhere = {one: found for one in names if (found := owning.elsewhere(one)) is not None}
        if not elsewhere:
            return self._info_of([self._log_of(caller, str(one)) for one in names], descriptor)
        here = {one: self._log_of(caller, str(one)) for one in names if one not in elsewhere}
        return pb.FlightInfo(
            schema=_schema_bytes(next(iter(here.values())).schema if here else ENVELOPE),
            flight_descriptor=descriptor,
            endpoint=[_endpoint_at(one, elsewhere.get(one), here.get(one)) for one in names],
            total_records=UNKNOWN,
            total_bytes=UNKNOWN,
        )

    def _info_of(self, logs: Sequence[TopicLog], descriptor: pb.FlightDescriptor) -> pb.FlightInfo:
        ends = [log.flush() for log in logs]
        is_known = all(log.first_offset == 0 for log in logs)  # otherwise older rows are in the table, or removed
        used_bytes = sum(segment.used_bytes for log in logs for segment in log.segments)
        tickets = [
            Read(topic=str(log.name), log_id=log.log_id, end=end, notes=False)
            for log, end in zip(logs, ends, strict=True)
        ]
        return pb.FlightInfo(
            schema=_schema_bytes(logs[0].schema),
            flight_descriptor=descriptor,
            endpoint=[_endpoint(ticket) for ticket in tickets],
            total_records=sum(ends) if is_known else UNKNOWN,
            total_bytes=used_bytes if is_known else UNKNOWN,
            ordered=len(logs) == 1,
            app_metadata=self._metadata(logs[0], ends[0]) if len(logs) == 1 else b"",
        )

    def _schema(self, caller: Principal, descriptor: pb.FlightDescriptor, topic: str) -> pb.SchemaResult:
        if not descriptor.path:
            return pb.SchemaResult(schema=_schema_bytes(self._log_of(caller, topic).schema))
        name = TopicName.parse(topic)
        names = self._names_of(caller, name)
        if names != [name]:  # partitions have messages alone
            return pb.SchemaResult(schema=_schema_bytes(ENVELOPE))
        return pb.SchemaResult(schema=_schema_bytes(self._log_of(caller, str(name)).schema))

    def _log_of(self, caller: Principal, name: str) -> TopicLog:
        self._calls.owning.check(name)
        return self._node.topic(caller, name, Action.DESCRIBE).log

    def _names_of(self, caller: Principal, name: TopicName) -> list[TopicName]:
        """Return the topic itself, or its partitions in order, wherever they are."""
        family = self._node.topics(caller).family(name)
        if self._calls.owning.is_clustered:
            family |= set(self._calls.owning.ownership.family(name))
        return topic_or_partitions(name, family)

    def _metadata(self, log: TopicLog, end: int | None) -> bytes:
        """Return the limits for batches, for clients that put."""
        limits: dict[str, Any] = {
            "message_bytes_max": self._node.settings.wal.message_bytes_max,
            "batch_bytes_max": min(self._settings.batch_bytes_max, MESSAGE_BYTES_MAX),
            "batch_rows_max": self._settings.batch_rows_max,
        }
        return json.dumps({"log_id": log.log_id, "end_offset": end, **limits}).encode()


def _by_path(path: Sequence[str]) -> pb.FlightDescriptor:
    return pb.FlightDescriptor(type=1, path=path)


def _schema_bytes(columns: pa.Schema) -> bytes:
    return bytes(pa.schema([OFFSET, *columns]).serialize())


def _endpoint(read: Read) -> pb.FlightEndpoint:
    ticket = ReadTicket(read=read).model_dump_json(exclude_defaults=True).encode()
    return pb.FlightEndpoint(ticket=pb.Ticket(ticket=ticket))


def _endpoint_at(name: TopicName, elsewhere: NotOwner | None, log: TopicLog | None) -> pb.FlightEndpoint:
    """Return the ticket of a partition. That of another broker has its address, and the end of when it is used."""
    if log is not None:
        return _endpoint(Read(topic=str(name), log_id=log.log_id, end=log.flush(), notes=False))
    assert elsewhere is not None
    address = flight_address(elsewhere.fields["addresses"])
    if address is None:
        raise TopicUnavailable(str(name), f"its owner {elsewhere.fields['broker_id']} serves no Flight clients")
    found = _endpoint(Read(topic=str(name), notes=False))
    found.location.append(pb.Location(uri=address))
    return found


def _read_of(descriptor: pb.FlightDescriptor) -> Read:
    if not is_read(descriptor.cmd):
        raise InvalidInput(
            'descriptor: give the path of a topic, or a command {"read": {"topic", "start", "end", "follow"}}',
            field="descriptor",
        )
    return parsed(ReadTicket, descriptor.cmd, "descriptor", TICKET_BYTES_MAX).read


def _prefix(expression: bytes) -> str:
    if len(expression) > CRITERIA_BYTES_MAX:
        raise InvalidInput(f"criteria: has {len(expression)} bytes, more than {CRITERIA_BYTES_MAX}", field="criteria")
    try:
        return expression.decode()
    except UnicodeDecodeError:
        raise InvalidInput("criteria: the prefix of the topics' names must be UTF-8", field="criteria") from None
