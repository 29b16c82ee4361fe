"""A watch of etcd: one thread reads its stream, and reopens it after the last revision received."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import Any, NoReturn

import grpc

from frazil.core.errors import Closed, FrazilError, RevisionCompacted
from frazil.meta import etcd_pb2 as pb
from frazil.meta.etcd_client import PAUSE_S, RANGE, WATCH, EtcdClient, RequestRefused, Unanswered
from frazil.meta.store import Change, Watch

WAITING_MAX = 64
"""Answers that are read ahead; etcd buffers the rest."""


def range_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix. UTF-8 has no byte 0xff, so the last byte can be
    incremented.
    """
    return prefix[:-1] + bytes([prefix[-1] + 1])


class EtcdWatch(Watch):
    def __init__(self, client: EtcdClient, root: bytes, prefix: str, after_revision: int) -> None:
        super().__init__(prefix, after_revision)
        self._client = client
        self._root = root
        self._read_revision = after_revision
        self._moved = threading.Condition()
        self._waiting: deque[list[Change]] = deque()
        self._failure: FrazilError | None = None
        self._stream: Any = None
        self._closed = False
        self._was_ended = False
        self._thread = threading.Thread(target=self._run, name="frazil-etcd-watch", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._moved:
            self._closed = True
            self._moved.notify_all()
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join()

    def _wait(self, timeout_ms: int | None) -> tuple[list[Change], int]:
        timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        with self._moved:
            self._moved.wait_for(lambda: self._waiting or self._failure or self._closed, timeout_s)
            if self._closed:
                raise Closed(f"the watch of {self._prefix}")
            if self._waiting:
                changes = self._waiting.popleft()
                self._moved.notify_all()
                return changes, changes[-1].revision
            if self._failure is not None:
                raise self._failure
            return [], self._read_revision

    def _run(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except Unanswered:
                with self._moved:
                    self._moved.wait_for(lambda: self._closed, PAUSE_S)
            except RequestRefused as refused:
                self._fail(self._client.unavailable(refused))
                return
            except FrazilError as error:
                self._fail(error)
                return

    def _follow(self) -> None:
        """Read one stream until it ends, which it does with an error."""
        requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        key = self._root + self._prefix.encode()
        create = pb.WatchCreateRequest(
            key=key, range_end=range_end(key), start_revision=self._read_revision + 1, progress_notify=True
        )
        requests.put(pb.WatchRequest(create_request=create))
        stream, member = self._client.stream(WATCH, iter(requests.get, None))
        try:
            with self._moved:
                self._stream = stream
                if self._closed:
                    return
            for answer in stream:
                self._take(answer)
        except grpc.RpcError as error:
            problem = self._client.problem_of(error)
            self._client.switch_member(member)
            if isinstance(problem, RequestRefused) and problem.is_stale_token:
                self._client.forget_token()
                raise Unanswered(str(problem)) from None
            raise problem from None
        finally:
            requests.put(None)
            stream.cancel()
        raise Unanswered("it ended the watch")

    def _take(self, answer: pb.WatchResponse) -> None:
        if answer.canceled:
            if answer.compact_revision:
                raise RevisionCompacted(self._prefix, self._read_revision)
            self._ended(answer.cancel_reason or "it ended the watch")
        self._was_ended = False
        if answer.created:
            self._check_goes_on(answer.header.revision)
            return
        if not answer.events:  # from time to time etcd reports its progress
            self._read_revision = max(self._read_revision, answer.header.revision)
            return
        changes = [_change(event, len(self._root)) for event in answer.events]
        with self._moved:
            self._moved.wait_for(lambda: self._closed or len(self._waiting) < WAITING_MAX)
            self._read_revision = changes[-1].revision
            self._waiting.append(changes)
            self._moved.notify_all()

    def _check_goes_on(self, revision: int) -> None:
        """Detect a restore. One member may lag for a while; if all do, other changes will get these revisions."""
        if revision < self._read_revision:
            key = self._root + self._prefix.encode()
            look = pb.RangeRequest(key=key, keys_only=True)
            newest = self._client.ask_until(RANGE, look, self._client.ends()).header.revision
            if newest < self._read_revision:
                raise RevisionCompacted(self._prefix, self._read_revision)

    def _ended(self, reason: str) -> NoReturn:
        """Retry once with a new token: etcd reports an invalid token in many ways."""
        self._client.forget_token()
        if self._was_ended:
            raise RequestRefused(grpc.StatusCode.PERMISSION_DENIED, reason)
        self._was_ended = True
        raise Unanswered(reason)

    def _fail(self, error: FrazilError) -> None:
        with self._moved:
            self._failure = error
            self._moved.notify_all()


def _change(event: pb.Event, root_bytes: int) -> Change:
    key = event.kv.key[root_bytes:].decode()
    return Change(key, None if event.type == pb.Event.DELETE else event.kv.value, event.kv.mod_revision)
