"""Conversion of messages between the broker and the Danube protocol.

Messages for consumers are serialised once, without the subscription's name, which is appended for each subscription.
Protobuf allows this: fields may come in any order, and repeated occurrences are merged. The same holds for the
incarnation of the delivery: it is in the id's `producer_id`, which consumers return unchanged and do not use.
"""

from __future__ import annotations

from frazil.core.errors import InvalidInput
from frazil.core.rows import Origin
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.node.types.broker import BrokerMessage, Entry

REQUEST_ID = "x-request-id"
"""The attribute that holds the request id of a message's producer."""
ID_MAX = 2**63 - 1
TIME_MS_MAX = 253_402_300_799_999


def outgoing(message: pb.StreamMessage, producer: str) -> BrokerMessage:
    """Convert a client's message for publishing."""
    if message.publish_time > TIME_MS_MAX:
        raise InvalidInput(f"publish_time: at most {TIME_MS_MAX} ms, the year 9999", field="publish_time")
    schema_id = message.schema_id if message.HasField("schema_id") else None
    if schema_id is not None and schema_id > ID_MAX:
        raise InvalidInput(f"schema_id: at most {ID_MAX}", field="schema_id")
    version = message.schema_version if message.HasField("schema_version") else None
    if version is not None and version >= 2**31:
        raise InvalidInput(f"schema_version: at most {2**31 - 1}", field="schema_version")
    attributes = {**message.attributes, REQUEST_ID: str(message.request_id)}
    key = message.routing_key if message.HasField("routing_key") else None
    origin = Origin(message.producer_name or producer, message.publish_time * 1_000, schema_id, version)
    return BrokerMessage(message.payload, key, attributes, origin)


def wire(entry: Entry, topic: str, broker: str, subscription_field: bytes) -> bytes:
    if entry.wire is None:
        entry.wire = _serialised(entry, topic, broker)
    return entry.wire + subscription_field


def subscription_field(name: str, incarnation: int) -> bytes:
    """A consumer returns the message id with its answer, and with it the subscription's incarnation."""
    stamp = pb.MsgID(producer_id=incarnation)
    return bytes(pb.StreamMessage(subscription_name=name, msg_id=stamp).SerializeToString())


def incarnation_of(answered: pb.MsgID) -> int | None:
    """Return the delivery that an answer is for; None for a client that does not return ids unchanged."""
    return int(answered.producer_id) or None


def _serialised(entry: Entry, topic: str, broker: str) -> bytes:
    message = entry.message
    attributes = {name: value or "" for name, value in message.attributes.items()}
    request_id = attributes.pop(REQUEST_ID, "0")
    made = pb.StreamMessage(
        request_id=int(request_id) if request_id.isdecimal() and int(request_id) < 2**64 else 0,
        msg_id=pb.MsgID(topic_name=topic, broker_addr=broker, topic_offset=message.offset),
        payload=message.payload,
        publish_time=max(0, int(message.publish_time.timestamp() * 1_000)),  # the protocol has no time before 1970
        producer_name=message.producer or "",
        attributes=attributes,
    )
    if message.schema_id is not None and message.schema_id >= 0:
        made.schema_id = message.schema_id
    if message.schema_version is not None and message.schema_version >= 0:
        made.schema_version = message.schema_version
    if message.key is not None:
        made.routing_key = message.key.decode(errors="replace")
    return bytes(made.SerializeToString())
