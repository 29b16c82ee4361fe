"""Messages between the broker and the Danube protocol.

What goes to consumers is serialised once for each message, without the subscription's name; that is appended for each
subscription, which Protobuf allows: fields may come in any order, and what is said of a field in two places is joined.
So is the epoch of the delivery: it stands in the id's `producer_id`, which consumers send back as it came and have no
use for.
"""

from __future__ import annotations

from frazil.broker.entry import Entry
from frazil.broker.topic import Outgoing
from frazil.core.errors import InvalidInput
from frazil.core.rows import Origin
from frazil.serve.danube_proto import DanubeApi_pb2 as pb

REQUEST_ID = "x-request-id"
"""The attribute in which a message keeps the number that its producer gave it."""
ID_MAX = 2**63 - 1
TIME_MS_MAX = 253_402_300_799_999


def outgoing(message: pb.StreamMessage, producer: str) -> Outgoing:
    """What a client sent, as it is published."""
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
    return Outgoing(message.payload, key, attributes, origin)


def wire(entry: Entry, topic: str, broker: str, subscription_field: bytes) -> bytes:
    if entry.wire is None:
        entry.wire = _serialised(entry, topic, broker)
    return entry.wire + subscription_field


def subscription_field(name: str, incarnation: int) -> bytes:
    """A consumer sends the message id back with its answer, and with it the subscription's incarnation."""
    stamp = pb.MsgID(producer_id=incarnation)
    return bytes(pb.StreamMessage(subscription_name=name, msg_id=stamp).SerializeToString())


def incarnation_of(answered: pb.MsgID) -> int | None:
    """Which delivery an answer is for; None of a client that does not send ids back as they came."""
    return int(answered.producer_id) or None


def _serialised(entry: Entry, topic: str, broker: str) -> bytes:
    message = entry.message
    attributes = {name: value or "" for name, value in message.attributes.items()}
    request_id = attributes.pop(REQUEST_ID, "0")
    made = pb.StreamMessage(
        request_id=int(request_id) if request_id.isdecimal() and int(request_id) < 2**64 else 0,
        msg_id=pb.MsgID(topic_name=topic, broker_addr=broker, topic_offset=message.offset),
        payload=message.payload,
        publish_time=max(0, int(message.publish_time.timestamp() * 1_000)),  # the protocol has none before 1970
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
