"""Output formats of `frazil consume`: a format string like kcat's, or JSON."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from frazil.cli.terminal.output import iso_time, json_line
from frazil.core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.core.rows import Message

DEFAULT_FORMAT = r"%v\n"

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TOKEN = re.compile(r"%(.)|\\x([0-9A-Fa-f]{2})|\\(.)|([%\\])", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class Shown(NamedTuple):
    """The fields that a format can show, the same for messages and typed rows."""

    topic: str
    offset: int
    time: datetime
    key: bytes
    value: bytes
    attributes: dict[str, str]


_FIELDS: dict[str, Callable[[Shown], bytes]] = {
    "o": lambda one: b"%d" % one.offset,
    "k": lambda one: one.key,
    "v": lambda one: one.value,
    "s": lambda one: one.value,
    "t": lambda one: one.topic.encode(),
    "T": lambda one: b"%d" % ((one.time - _EPOCH) // timedelta(milliseconds=1)),
    "h": lambda one: ",".join(f"{name}={value}" for name, value in one.attributes.items()).encode(),
}

Piece = bytes | Callable[[Shown], bytes]


def parse_format(text: str) -> list[Piece]:
    """Parse the format into literal bytes and fields; unknown fields are refused."""
    pieces: list[Piece] = []
    at = 0
    for token in _TOKEN.finditer(text):
        pieces.append(text[at : token.start()].encode())
        pieces.append(_piece(token))
        at = token.end()
    pieces.append(text[at:].encode())
    return [piece for piece in pieces if piece != b""]


def _piece(token: re.Match[str]) -> Piece:
    field, code, escape, _ = token.groups()
    if field == "%":
        return b"%"
    if field in _FIELDS:
        return _FIELDS[field]
    if code:
        return bytes([int(code, 16)])
    if escape in _ESCAPES:
        return _ESCAPES[escape]
    known = ", ".join(f"%{name}" for name in _FIELDS)
    raise InvalidInput(rf"-f: {token.group()!r} is not known; use {known}, %%, \n, \t, \r, \0, \xHH")


def formatted(pieces: list[Piece], one: Shown) -> bytes:
    return b"".join(piece if isinstance(piece, bytes) else piece(one) for piece in pieces)


def shown_message(topic: str, message: Message) -> Shown:
    return Shown(
        topic, message.offset, message.append_time, message.key or b"", message.payload, message.attributes or {}
    )


def shown_row(topic: str, row: dict[str, Any]) -> Shown:
    own = {name: value for name, value in row.items() if not name.startswith("_")}
    return Shown(topic, row["_offset"], row["_append_time"], b"", json_line(json_value(own)).encode(), {})


def message_as_json(topic: str, message: Message) -> dict[str, Any]:
    return {
        "topic": topic,
        "offset": message.offset,
        "append_time": iso_time(message.append_time),
        "publish_time": iso_time(message.publish_time),
        **_text_or_base64("key", message.key),
        **_text_or_base64("payload", message.payload),
        "attributes": message.attributes,
    }


def row_as_json(topic: str, row: dict[str, Any]) -> dict[str, Any]:
    own = {name: json_value(value) for name, value in row.items() if not name.startswith("_")}
    return {"topic": topic, "offset": row["_offset"], "append_time": iso_time(row["_append_time"]), "row": own}


def batch_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except ValueError:  # nanoseconds do not fit a datetime
        import pyarrow as pa

        rows = batch.cast(pa.schema([_readable(field) for field in batch.schema])).to_pylist()
    return rows


def _readable(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    nanoseconds = pa.types.is_timestamp(field.type) and field.type.unit == "ns"
    return field.with_type(pa.string()) if nanoseconds else field


def json_value(value: Any) -> Any:
    """Convert a cell to JSON: times as ISO 8601, bytes as text or base64, other non-JSON values as text."""
    if isinstance(value, bytes):
        return _text_or_base64("value", value).get("value", {"base64": base64.b64encode(value).decode()})
    if isinstance(value, datetime):
        return iso_time(value) if value.tzinfo else value.isoformat()
    if isinstance(value, dict):
        return {str(name): json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    return value


def _text_or_base64(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
