"""OTLP/HTTP: `POST /v1/traces`, `/v1/logs` and `/v1/metrics`, in Protobuf or JSON.

A plain ASGI app: a framework would take as long as everything else. The sender is identified and its rights are
checked before the body is received; then there must be room for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from frazil.core.errors import (
    EncodingRefused,
    FrazilError,
    NotSupported,
    OutcomeUnknown,
    RequestTooLarge,
    Unauthenticated,
)
from frazil.doors.admission import too_slow
from frazil.doors.client_certificates import certificate_of_scope
from frazil.doors.errors import INTERNAL_MESSAGE, status_of
from frazil.doors.http_callers import ANY_HOST, CallerRules
from frazil.doors.http_identity import caller_of, peer_of
from frazil.doors.otlp.encodings import KNOWN, Encodings
from frazil.doors.otlp.headers import export_of, sender_of
from frazil.doors.otlp.intake import REQUEST_SETTING, OtlpIntake
from frazil.doors.otlp.statuses import OtlpStatus, StatusError, otlp_status
from frazil.node.node import Node
from frazil.node.request_ids import Receive, Scope, Send, current
from frazil.telemetry.signals import Signal

PROTOBUF, JSON = b"application/x-protobuf", b"application/json"
PATHS = {f"/v1/{signal.value}": signal for signal in Signal}
PROFILES = "/v1development/profiles"
NO_PROFILES = "Frazil keeps traces, logs and metrics; leave profiles out of the exporter's pipeline"

BODY_SETTING = "telemetry.otlp.body_bytes_max"
TEMPORARY_REDIRECT, INTERNAL, NOT_IMPLEMENTED, UNAVAILABLE = 307, 500, 501, 503

_HTTP = {"RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}
"""Statuses of refusals by another broker, by the names of gRPC's."""

_log = logging.getLogger("frazil.serve")


class HttpAnswer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Disconnected(Exception):
    """The sender is gone before its request was complete."""


class HttpDoor:
    """The ASGI app."""

    def __init__(self, node: Node, intake: OtlpIntake) -> None:
        http, self._settings = node.settings.http, node.settings.telemetry.otlp
        self._node = node
        self._intake = intake
        self._encodings = Encodings(self._settings.request_bytes_max)
        self._seconds_max = self._settings.receive_ms_max / 1_000
        allowed = (ANY_HOST,) if node.settings.security.enabled else http.allowed_hosts  # no page has credentials
        self._rules = CallerRules(self._settings.http_host, allowed, self._settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        try:
            with self._intake.budget.holding():
                answer = await self._answer(scope, headers, kind, receive)
        except Disconnected:
            return
        except FrazilError as error:
            self._intake.counts.refuse("http", error)
            answer = _refusal(error, kind)
        except StatusError as error:  # of another broker
            answer = _answered(_HTTP.get(error.status.name, 400), error.status, kind)
        except Exception:  # noqa: BLE001 - logged; the client learns no details
            _log.exception("%s failed", scope["path"])
            self._intake.counts.refuse("http", FrazilError(INTERNAL_MESSAGE))
            answer = _answered(500, OtlpStatus("INTERNAL", INTERNAL_MESSAGE), kind)
        await _send(answer, send)

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], kind: bytes, receive: Receive) -> HttpAnswer:
        refused = self._rules.refused(scope)
        if refused is not None:
            self._intake.counts.refuse("http", refused)
            return _refusal(refused, kind, (b"connection", b"close"))
        signal = PATHS.get(scope["path"])
        if signal is None and scope["path"] != PROFILES:
            return _answered(404, OtlpStatus("NOT_FOUND", f"send to {', '.join(PATHS)}"), kind)
        if scope["method"] != "POST":
            status = OtlpStatus("UNIMPLEMENTED", "send requests with POST")
            return _answered(405, status, kind, (b"allow", b"POST"))
        asked = current()
        if asked is not None:
            asked.call, asked.peer = scope["path"], peer_of(scope)
        who = await caller_of(scope, self._node)
        self._node.gate.request(who)
        if signal is None:
            raise NotSupported("sending profiles", NO_PROFILES)
        if kind not in (PROTOBUF, JSON):
            raise EncodingRefused("content-type", kind.decode("latin-1"), "application/x-protobuf or application/json")
        has_certificate = certificate_of_scope(scope) is not None
        given = ((name.decode("latin-1"), value) for name, value in scope["headers"])
        export = export_of("http", signal, who, given, has_certificate=has_certificate)
        self._intake.check(export)
        encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        sender = sender_of(who, peer_of(scope))
        content = await self._encodings.decoded(encoding, await self._body(headers, sender, receive))
        if len(content) > self._settings.request_bytes_max:
            raise RequestTooLarge("the request has", "bytes", REQUEST_SETTING, self._settings.request_bytes_max)
        self._intake.budget.keep(len(content))
        if kind == JSON:
            content = await self._intake.from_json(signal, content)
        rejected = await self._intake.store(export, content)
        body = rejected.as_json(signal) if kind == JSON else rejected.as_protobuf()
        return HttpAnswer(200, body, ((b"content-type", kind),))

    async def _body(self, headers: dict[bytes, bytes], sender: str, receive: Receive) -> bytes:
        limit, given = self._settings.body_bytes_max, headers.get(b"content-length")
        size = limit if given is None else int(given)  # h11 has checked that it is a number
        if size > limit:
            raise RequestTooLarge("the body has", "bytes", BODY_SETTING, limit)
        await self._intake.budget.take(sender, size, self._seconds_max)
        try:
            async with asyncio.timeout(self._seconds_max):
                return await _received(receive, limit)
        except TimeoutError:
            raise too_slow(self._seconds_max) from None


async def _received(receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RequestTooLarge("the body has", "bytes", BODY_SETTING, limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _refusal(error: FrazilError, kind: bytes, *headers: tuple[bytes, bytes]) -> HttpAnswer:
    status, found, more = status_of(error).http, otlp_status(error), list(headers)
    if isinstance(error, NotSupported):
        status = NOT_IMPLEMENTED
    elif status == TEMPORARY_REDIRECT or isinstance(error, OutcomeUnknown):
        status = UNAVAILABLE  # exporters send again after it, and drop the request after a 500
    if status == INTERNAL:
        _log.error("%s", error)
    if isinstance(error, Unauthenticated):
        more.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, EncodingRefused):
        more.append((b"accept-encoding", KNOWN.encode()))
    return _answered(status, found, kind, *more)


def _answered(status: int, found: OtlpStatus, kind: bytes, *headers: tuple[bytes, bytes]) -> HttpAnswer:
    """Return the status in the content type of the request; in JSON if that is another one."""
    if found.retry_after_ms is not None:
        headers = (*headers, (b"retry-after", b"%d" % max(1, -(-found.retry_after_ms // 1_000))))
    if kind == PROTOBUF:
        return HttpAnswer(status, found.as_protobuf(), ((b"content-type", PROTOBUF), *headers))
    return HttpAnswer(status, found.as_json(), ((b"content-type", JSON), *headers))


async def _send(answer: HttpAnswer, send: Send) -> None:
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
