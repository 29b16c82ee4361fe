"""Calls to etcd over gRPC: choice of member, authentication, timeouts, and the meaning of a missing answer.

`ask` tries once and distinguishes a refusal from a missing answer, after which the call may have been executed.
`ask_until` retries at one member after another, for idempotent calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import grpc

from frazil.core.errors import Closed, InvalidSettings, MetadataUnavailable
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta import etcd_pb2 as pb

ATTEMPTS_MIN = 3
"""A member that hangs uses at most this fraction of a call's time; the rest is for other members."""
PAUSE_S = 0.1
"""Pause between attempts. It can be short: gRPC connects to an unreachable member only once a second."""

_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),  # etcd treats more than one in 5 s as an attack
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # connection timeout
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_REFUSALS = frozenset(
    {
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old", "revision in header is old")


class _Message(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's own name


Request = TypeVar("Request", bound=_Message)
Response = TypeVar("Response", bound=_Message)


@dataclass(frozen=True, slots=True)
class Call(Generic[Request, Response]):
    path: str
    request: type[Request]
    response: type[Response]
    streams: bool = False
    is_linear: bool = False
    """Whether the revision in the answer is at least that of every answer before the request was sent."""


RANGE = Call("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse, is_linear=True)
PUT = Call("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse, is_linear=True)
TXN = Call("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse, is_linear=True)
WATCH = Call("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse, streams=True)
GRANT = Call("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE = Call("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE = Call(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse, streams=True
)
TIME_TO_LIVE = Call("/etcdserverpb.Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse)
AUTHENTICATE = Call("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class Unanswered(Exception):
    """Whether etcd has executed the call is unknown."""


class RequestRefused(Exception):
    """etcd has answered and did not execute the call."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def is_stale_token(self) -> bool:
        return any(words in str(self) for words in _STALE_TOKEN)


class EtcdClient:
    def __init__(self, settings: MetadataSettings) -> None:
        self._settings = settings
        self._timeout_s = settings.timeout_ms / 1_000
        self._attempt_s = self._timeout_s / ATTEMPTS_MIN
        credentials = _credentials(settings) if settings.is_encrypted else None
        self._channels = [_channel(endpoint, credentials) for endpoint in settings.endpoints]
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._current = 0
        self._token: str | None = None
        self._newest = 0
        self.steps_back = 0
        """How often etcd was found at a lower revision than before, as after a restore from an older backup."""

    def ends(self) -> float:
        """Return the deadline of a call that begins now."""
        return time.monotonic() + self._timeout_s

    def ask_until(self, call: Call[Request, Response], request: Request, ends: float) -> Response:
        while True:
            try:
                return self.ask(call, request, ends)
            except Unanswered as problem:
                self.pause_or_end(problem, ends)

    def pause_or_end(self, problem: Unanswered, ends: float) -> None:
        """Wait before the next attempt, or raise the problem if the time is up."""
        if self._closing.is_set():
            raise self.closed()
        if time.monotonic() + PAUSE_S >= ends:
            raise self.unavailable(problem) from None
        self._closing.wait(PAUSE_S)

    def ask(self, call: Call[Request, Response], request: Request, ends: float) -> Response:
        """Make one attempt at the current member; after a missing answer, switch to the next member."""
        token = self._known_token(ends)
        try:
            return self._once(call, request, ends, token)
        except RequestRefused as refused:
            if not refused.is_stale_token:
                raise
        self.forget_token(token)
        return self._once(call, request, ends, self._known_token(ends))

    def stream(self, call: Call[Request, Response], requests: Iterator[Request]) -> tuple[Any, int]:
        """Return a stream of answers of the current member, which ends with `grpc.RpcError`, and that member."""
        token, at = self._known_token(self.ends()), self._current
        multi = self._channels[at].stream_stream(
            call.path, request_serializer=call.request.SerializeToString, response_deserializer=_reader(call.response)
        )
        return multi(requests, metadata=(*_metadata(token), ("hasleader", "true"))), at

    def problem_of(self, error: grpc.RpcError) -> Unanswered | RequestRefused:
        code, details = error.code(), " ".join((error.details() or "").split())
        if code in _REFUSALS:
            return RequestRefused(code, details)
        return Unanswered("it did not answer in time" if code is grpc.StatusCode.DEADLINE_EXCEEDED else details)

    def switch_member(self, at: int) -> None:
        """Switch to another member."""
        with self._guard:
            if self._current == at:
                self._current = (at + 1) % len(self._channels)

    def forget_token(self, token: str | None = None) -> None:
        with self._guard:
            if token is None or self._token == token:
                self._token = None

    def unavailable(self, problem: Unanswered | RequestRefused, *, unclear: bool = False) -> MetadataUnavailable:
        return MetadataUnavailable(", ".join(self._settings.endpoints), str(problem), unclear=unclear)

    def closed(self) -> Closed:
        return Closed(f"the store at {', '.join(self._settings.endpoints)}")

    def close(self) -> None:
        self._closing.set()
        for channel in self._channels:
            channel.close()

    def _once(self, call: Call[Request, Response], request: Request, ends: float, token: str | None) -> Response:
        left_s = min(ends - time.monotonic(), self._attempt_s)
        if self._closing.is_set():
            raise self.closed()
        if left_s <= 0:
            raise Unanswered("it did not answer in time")
        at, newest = self._current, self._newest
        try:
            answer = _invoke(self._channels[at], call, request, left_s, _metadata(token))
        except grpc.RpcError as error:
            problem = self.problem_of(error)
            if isinstance(problem, Unanswered):
                self.switch_member(at)
            raise problem from None
        except ValueError:  # gRPC's error for a closed channel
            if not self._closing.is_set():
                raise
            raise self.closed() from None
        if call.is_linear:
            self._compare(newest, answer.header.revision)  # type: ignore[attr-defined]
        return answer

    def _compare(self, before: int, revision: int) -> None:
        with self._guard:
            if revision < before:
                self.steps_back += 1
                self._newest = revision
            else:
                self._newest = max(self._newest, revision)

    def _known_token(self, ends: float) -> str | None:
        settings, token = self._settings, self._token
        if settings.username is None or settings.password is None or token is not None:
            return token
        request = pb.AuthenticateRequest(name=settings.username, password=settings.password.get_secret_value())
        answer = self._once(AUTHENTICATE, request, ends, None)
        self._token = answer.token
        return answer.token


def _invoke(
    channel: grpc.Channel,
    call: Call[Request, Response],
    request: Request,
    timeout_s: float,
    metadata: tuple[tuple[str, str], ...],
) -> Response:
    writes, reads = call.request.SerializeToString, _reader(call.response)
    if not call.streams:
        unary = channel.unary_unary(call.path, request_serializer=writes, response_deserializer=reads)
        one: Response = unary(request, timeout=timeout_s, metadata=metadata)
        return one
    multi = channel.stream_stream(call.path, request_serializer=writes, response_deserializer=reads)
    answers: Any = multi(iter([request]), timeout=timeout_s, metadata=metadata)
    try:
        for answer in answers:
            first: Response = answer
            return first
    finally:
        answers.cancel()
    raise Unanswered("it ended the call without an answer")


def _reader(response: type[Any]) -> Any:
    return response.FromString


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("token", token),)


def _channel(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    address = endpoint.partition("://")[2]
    if credentials is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, credentials, options=_OPTIONS)


def _credentials(settings: MetadataSettings) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_bytes_of(settings.ca_path, "ca_path"),
        private_key=_bytes_of(settings.key_path, "key_path"),
        certificate_chain=_bytes_of(settings.cert_path, "cert_path"),
    )


def _bytes_of(path: Path | None, name: str) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise InvalidSettings(f"metadata.{name}: cannot read {path}: {error.strerror}") from None
