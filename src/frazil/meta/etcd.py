"""The metadata store of a cluster: etcd, through its v3 API.

An answer can be lost after etcd has made a change. So each change also writes a slip, a key that only this call uses,
in the same transaction, on condition that the slip is unchanged since this call last saw it. If no answer arrives, the
slip is overwritten under the same condition. If that succeeds, the change was not made and never will be; otherwise the
slip has the revision of the change. If the call times out before this is known, the next call of the store resolves it
first, so that a later read is final. Slips are kept next to the keys, under `PREFIX~slips/` (`~slips/` with the prefix
/), and have a lease.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import grpc

from frazil.core.errors import Fenced, FrazilError, LeaseExpired
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta import etcd_pb2 as pb
from frazil.meta.etcd_client import (
    GRANT,
    KEEP_ALIVE,
    PUT,
    RANGE,
    REVOKE,
    TIME_TO_LIVE,
    TXN,
    Call,
    EtcdClient,
    Request,
    RequestRefused,
    Response,
    Unanswered,
)
from frazil.meta.etcd_watch import EtcdWatch, range_end
from frazil.meta.store import (
    ABSENT,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    KeyAt,
    Lease,
    Listing,
    StoredEntry,
    Watch,
    check_key,
    check_ttl,
    check_value,
)

SLIP_LEASE_S = 3_600
SLIP_FRESH_S = SLIP_LEASE_S / 3
"""An older slip is not reused, so that none expires while a call depends on it."""
CLOSE_S_MAX = 1.0
STEP_KEYS_MAX = 100
"""Keys put or deleted in one transaction; etcd accepts 128 operations, one of which is the slip's."""

_DONE = b"done"
_WITHDRAWN = b"withdrawn"


class EtcdStore:
    """Open one store in each process: gRPC does not survive a fork."""

    def __init__(self, settings: MetadataSettings) -> None:
        self._client = EtcdClient(settings)
        self._root = settings.root.encode()
        self._slips = _Slips(self._client, self._root)
        self._guard = threading.Lock()
        self._watches: list[EtcdWatch] = []
        self._unsettled: list[_Slip] = []
        self._fence: _Fence | None = None
        self._closed = False

    def get(self, key: str) -> StoredEntry | None:
        check_key(key)
        found = self._ask(RANGE, pb.RangeRequest(key=self._path(key))).kvs
        return self._entry(found[0]) if found else None

    def put_if(
        self,
        key: str,
        value: bytes,
        revision: int,
        lease: Lease | None = None,
        also: Mapping[str, bytes] | None = None,
    ) -> int | None:
        for one, content in {**(also or {}), key: value}.items():
            check_key(one)
            check_value(content)
        put = pb.PutRequest(key=self._path(key), value=value, lease=0 if lease is None else lease.id)
        first, *others = list(_steps(also or {})) or [{}]
        puts = [put, *(pb.PutRequest(key=self._path(one), value=content) for one, content in first.items())]
        fence = self._fence if also else self._fence_of(key)
        changes = [pb.RequestOp(request_put=each) for each in puts]
        made_at = self._change([_is_at(put.key, revision)], changes, fence, lease)
        if made_at is not None:
            for step in others:
                self.put_all(step)
        return made_at

    def put_all(self, values: Mapping[str, bytes], *, only_at: KeyAt | None = None) -> bool:
        for key, value in values.items():
            check_key(key)
            check_value(value)
        conditions = self._conditions(only_at)
        for step in _steps(values):
            puts = [pb.PutRequest(key=self._path(key), value=value) for key, value in step.items()]
            if self._change(conditions, [pb.RequestOp(request_put=put) for put in puts], self._fence) is None:
                return False
        return True

    def delete(self, key: str, revision: int) -> bool:
        check_key(key)
        if revision == ABSENT:
            return False
        remove = pb.DeleteRangeRequest(key=self._path(key))
        change = pb.RequestOp(request_delete_range=remove)
        return self._change([_is_at(remove.key, revision)], [change], self._fence_of(key)) is not None

    def delete_all(self, keys: Collection[str], below: Collection[str] = (), *, only_at: KeyAt | None = None) -> bool:
        for key in (*keys, *below):
            check_key(key)
        prefixes = [self._path(prefix) for prefix in below]
        removals = [pb.DeleteRangeRequest(key=path, range_end=range_end(path)) for path in prefixes]
        removals += [pb.DeleteRangeRequest(key=self._path(key)) for key in keys]
        conditions = self._conditions(only_at)
        for at in range(0, len(removals), STEP_KEYS_MAX):
            step = [pb.RequestOp(request_delete_range=one) for one in removals[at : at + STEP_KEYS_MAX]]
            if self._change(conditions, step, self._fence) is None:
                return False
        return True

    def list(self, prefix: str, suffix: str = "") -> list[StoredEntry]:
        return [entry for entry in self.snapshot(prefix).entries if entry.key.endswith(suffix)]

    def snapshot(self, prefix: str) -> Listing:
        check_key(prefix)
        path = self._path(prefix)
        answer = self._ask(RANGE, pb.RangeRequest(key=path, range_end=range_end(path)))
        return Listing([self._entry(found) for found in answer.kvs], answer.header.revision)

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_key(prefix)
        with self._guard:
            if self._closed:
                raise self._client.closed()
            watch = EtcdWatch(self._client, self._root, prefix, after_revision)
            self._watches = [*(each for each in self._watches if not each.is_closed), watch]
        return watch

    def grant_lease(self, ttl_ms: int) -> Lease:
        check_ttl(ttl_ms)
        lease_id, granted_s = _grant(self._client, ceil(ttl_ms / 1_000), self._client.ends())
        return Lease(lease_id, granted_s * 1_000)

    def keep_alive(self, lease: Lease) -> bool:
        return self._ask(KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease.id)).TTL > 0

    def revoke_lease(self, lease: Lease) -> None:
        self._ask(REVOKE, pb.LeaseRevokeRequest(ID=lease.id), missing=pb.LeaseRevokeResponse())

    @property
    def steps_back(self) -> int:
        return self._client.steps_back

    def fence(self, key: str, value: bytes) -> None:
        check_key(key)
        check_value(value)
        self._fence = _Fence(key, self._path(key), value)

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.close()
        self._slips.close()
        self._client.close()

    def _change(
        self,
        conditions: Sequence[pb.Compare],
        changes: Sequence[pb.RequestOp],
        fence: _Fence | None,
        lease: Lease | None = None,
    ) -> int | None:
        """Return the revision of the change, or None if a condition does not hold."""
        guards = [] if fence is None else [fence.holds()]
        looks = [] if fence is None else [fence.look()]
        ends = self._client.ends()
        self._settle_rest(ends)
        while True:
            with self._slips.taken(ends) as slip:
                request = pb.TxnRequest(
                    compare=[*conditions, *guards, _is_at(slip.path, slip.revision)],
                    success=[*changes, slip.put(_DONE)],
                    failure=[slip.look(), *looks],
                )
                try:
                    answer = self._client.ask(TXN, request, ends)
                except Unanswered as problem:
                    made_at = self._settle(slip, problem, ends)
                    if made_at is not None:
                        return made_at
                    continue  # it was withdrawn: try again
                except RequestRefused as refused:
                    if refused.code is not grpc.StatusCode.NOT_FOUND:
                        raise self._client.unavailable(refused) from None
                    if lease is not None and self._has_ended(lease):
                        raise LeaseExpired(lease.id) from None
                    self._slips.begin_anew(slip)
                    continue
                if answer.succeeded:
                    slip.revision = answer.header.revision
                    return slip.revision
                if fence is not None:
                    fence.check(answer.responses[1])
                seen = slip.read(answer.responses[0])
                if seen is not None and seen.mod_revision == slip.revision:
                    return None
                self._slips.begin_anew(slip)

    def _settle(self, slip: _Slip, problem: Unanswered, ends: float) -> int | None:
        """Find the outcome of a change; None if it was not made and can no longer be made."""
        slip.is_lost = True  # until the outcome is known
        try:
            answer = self._client.ask_until(TXN, slip.withdrawal(), ends)
        except (FrazilError, RequestRefused):
            with self._guard:
                self._unsettled.append(slip)
            raise self._client.unavailable(problem, unclear=True) from None
        if answer.succeeded:
            slip.revision, slip.is_lost = answer.header.revision, False
            return None
        seen = slip.read(answer.responses[0])
        if seen is None:
            raise self._client.unavailable(problem, unclear=True)
        if seen.mod_revision < slip.revision:  # etcd was restored: the slip refers to an earlier change
            self._slips.begin_anew(slip)
            return None
        slip.revision, slip.is_lost = seen.mod_revision, False
        return slip.revision if seen.value == _DONE else None

    def _settle_rest(self, ends: float) -> None:
        """Resolve the unknown outcomes of earlier calls before any other request.

        A slip stays in the list until its outcome is known, so that other threads wait for that too: they ask as well,
        which changes nothing.
        """
        while self._unsettled:
            with self._guard:
                slip = self._unsettled[0] if self._unsettled else None
            if slip is None:
                return
            try:
                self._client.ask_until(TXN, slip.withdrawal(), ends)
            except RequestRefused as error:
                raise self._client.unavailable(error) from None
            with self._guard:
                self._unsettled = [one for one in self._unsettled if one is not slip]

    def _conditions(self, only_at: KeyAt | None) -> Sequence[pb.Compare]:
        return [] if only_at is None else [_is_at(self._path(only_at.key), only_at.revision)]

    def _fence_of(self, key: str) -> _Fence | None:
        """Return the fence for a change of that key; the fence's own key has none."""
        return None if self._fence is None or self._fence.key == key else self._fence

    def _has_ended(self, lease: Lease) -> bool:
        return self._ask(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease.id)).TTL <= 0

    def _ask(self, call: Call[Request, Response], request: Request, missing: Response | None = None) -> Response:
        """Send a request; `missing` is the answer if the key or lease does not exist."""
        ends = self._client.ends()
        self._settle_rest(ends)
        try:
            return self._client.ask_until(call, request, ends)
        except RequestRefused as refused:
            if missing is not None and refused.code is grpc.StatusCode.NOT_FOUND:
                return missing
            raise self._client.unavailable(refused) from None

    def _path(self, key: str) -> bytes:
        return self._root + key.encode()

    def _entry(self, found: pb.KeyValue) -> StoredEntry:
        return StoredEntry(found.key[len(self._root) :].decode(), found.value, found.mod_revision)


@dataclass(frozen=True, slots=True)
class _Fence:
    """A key that must have a given value for any change to succeed."""

    key: str
    path: bytes
    value: bytes

    def holds(self) -> pb.Compare:
        return pb.Compare(key=self.path, target=pb.Compare.VALUE, value=self.value)

    def look(self) -> pb.RequestOp:
        return pb.RequestOp(request_range=pb.RangeRequest(key=self.path))

    def check(self, answer: pb.ResponseOp) -> None:
        found = answer.response_range.kvs
        if not found or found[0].value != self.value:
            raise Fenced(self.key)


@dataclass(slots=True)
class _Slip:
    path: bytes
    revision: int
    lease_id: int
    written_s: float
    is_lost: bool = False

    def put(self, value: bytes) -> pb.RequestOp:
        return pb.RequestOp(request_put=pb.PutRequest(key=self.path, value=value, lease=self.lease_id))

    def look(self) -> pb.RequestOp:
        return pb.RequestOp(request_range=pb.RangeRequest(key=self.path))

    def withdrawal(self) -> pb.TxnRequest:
        return pb.TxnRequest(
            compare=[_is_at(self.path, self.revision)], success=[self.put(_WITHDRAWN)], failure=[self.look()]
        )

    def read(self, answer: pb.ResponseOp) -> pb.KeyValue | None:
        """Read the current slip, if it still exists."""
        found = answer.response_range.kvs
        return found[0] if found else None


class _Slips:
    """Slips that no call is using. There are as many as the highest number of concurrent calls so far."""

    def __init__(self, client: EtcdClient, root: bytes) -> None:
        self._client = client
        self._name = root + b"~slips/" + secrets.token_hex(8).encode()
        self._guard = threading.Lock()
        self._free: list[_Slip] = []
        self._made = 0
        self._lease_id = 0
        self._lease_from_s = 0.0

    @contextlib.contextmanager
    def taken(self, ends: float) -> Iterator[_Slip]:
        fresh_from_s = time.monotonic() - SLIP_FRESH_S
        with self._guard:
            self._free = [slip for slip in self._free if slip.written_s > fresh_from_s]
            slip = self._free.pop() if self._free else None
        if slip is None:
            slip = self._new(ends)
        try:
            yield slip
        except FrazilError:
            raise
        except BaseException:
            slip.is_lost = True
            raise
        finally:
            if not slip.is_lost:
                with self._guard:
                    self._free.append(slip)

    def begin_anew(self, slip: _Slip) -> None:
        """The slip is gone, and so are all others of its lease."""
        slip.is_lost = True
        with self._guard:
            self._free = [each for each in self._free if each.lease_id != slip.lease_id]
            if self._lease_id == slip.lease_id:
                self._lease_id = 0

    def close(self) -> None:
        if self._lease_id:
            with contextlib.suppress(FrazilError, RequestRefused, Unanswered):  # etcd expires it within the hour
                self._client.ask(REVOKE, pb.LeaseRevokeRequest(ID=self._lease_id), time.monotonic() + CLOSE_S_MAX)

    def _new(self, ends: float) -> _Slip:
        """Create a slip. If its creation was not answered, it is abandoned: it might still change."""
        while True:
            now_s = time.monotonic()
            lease_id = self._lease(now_s, ends)
            with self._guard:
                self._made += 1
                path = self._name + f"/{self._made}".encode()
            try:
                answer = self._client.ask(PUT, pb.PutRequest(key=path, value=_WITHDRAWN, lease=lease_id), ends)
            except Unanswered as problem:
                self._client.pause_or_end(problem, ends)
            except RequestRefused as refused:
                if refused.code is not grpc.StatusCode.NOT_FOUND:
                    raise self._client.unavailable(refused) from None
                with self._guard:
                    self._lease_id = 0
            else:
                return _Slip(path, answer.header.revision, lease_id, now_s)

    def _lease(self, now_s: float, ends: float) -> int:
        """Two concurrent calls may each get a lease; the one that is not kept expires."""
        with self._guard:
            if self._lease_id and self._lease_from_s > now_s - SLIP_FRESH_S:
                return self._lease_id
        granted, _ = _grant(self._client, SLIP_LEASE_S, ends)
        with self._guard:
            self._lease_id, self._lease_from_s = granted, now_s
        return granted


def _steps(values: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Split into the largest steps that etcd accepts by default."""
    step: dict[str, bytes] = {}
    size_bytes = 0
    for key, value in values.items():
        if step and (len(step) == STEP_KEYS_MAX or size_bytes + len(value) > VALUE_BYTES_MAX):
            yield step
            step, size_bytes = {}, 0
        step[key] = value
        size_bytes += len(value) + KEY_BYTES_MAX
    if step:
        yield step


def _is_at(path: bytes, revision: int) -> pb.Compare:
    return pb.Compare(key=path, target=pb.Compare.MOD, mod_revision=revision)


def _grant(client: EtcdClient, ttl_s: int, ends: float) -> tuple[int, int]:
    """Return the lease id and the seconds granted. The client chooses the id, so that a lost answer leaves no second
    lease.
    """
    lease_id = secrets.randbits(62) + 1
    try:
        granted_s = client.ask_until(GRANT, pb.LeaseGrantRequest(TTL=ttl_s, ID=lease_id), ends).TTL
    except RequestRefused as refused:
        if refused.code is not grpc.StatusCode.FAILED_PRECONDITION:
            raise client.unavailable(refused) from None
        granted_s = client.ask_until(TIME_TO_LIVE, pb.LeaseTimeToLiveRequest(ID=lease_id), ends).TTL
    return lease_id, granted_s
