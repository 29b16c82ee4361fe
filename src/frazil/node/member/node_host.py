"""The topics of this broker, opened and closed for the ownership of topics; see `TopicHost`.

    open                fence the log off in the object store, open its folder or adopt it from objects, load its users
    upload              upload a topic that is to be given away, while it is served
    close_and_upload    end streams, store cursors, upload everything, close the log
    discard             close a topic of another broker, and remove its folder or set it aside

The object store decides who may write a log: the epoch that is begun here stops all earlier owners, and the folder
remembers it. A folder behind which another process has stored rows is never opened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.broker.broker import Broker
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, LogFailed, LogFenced, ObjectDamaged, TopicUnavailable, TryLater
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel, RetentionSettings, SyncMode
from frazil.log.folder.catalog import TopicRecord
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.log.write.acks import sync_mode_of
from frazil.log.write.producers import ProducersRecord
from frazil.meta import cluster_keys as keys
from frazil.meta.store import KeyAt, MetaStore
from frazil.meta.topic_records import FIRST_EPOCH, LogIdentity, TopicIdentity, topic_record_key, unpacked_schema
from frazil.node.member.taken_names import read_taken, store_taken
from frazil.node.ownership.host import LocalLog
from frazil.node.threads import Threads
from frazil.objects.acks import AckedLogs
from frazil.objects.epoch import Epoch, EpochClaim, begin_epoch
from frazil.objects.known import KnownLog, ObjectsOfLogs
from frazil.objects.loading import end_of_epoch
from frazil.objects.recovery import Stated, continuation
from frazil.objects.upload.uploader import Uploader

if TYPE_CHECKING:  # it imports PyIceberg, which takes a second
    from frazil.node.member.accepted_loss import AcceptedLoss

CLOSE_TRIES_MAX = 3
"""A log is closed once all its rows are uploaded; rows of calls in progress may come in between."""
STORE_TRIES_MAX = 20
LOOKS_MAX = 32
"""Topics that are looked at with one call."""
CLOSE_SECONDS_MAX = 30.0
"""For the rows that came while the others were uploaded. The topic is not served meanwhile."""

_log = logging.getLogger("frazil.cluster")


@dataclass(frozen=True, slots=True)
class OpenedTopic:
    log_id: str | None
    owner_epoch: int
    epoch: Epoch | None = None
    """None for a topic without a log, and with ack level `object`: then the log itself has it."""
    log: TopicLog | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it may be opened again: another process has taken the log over, or its rows are in the store."""
        return (self.epoch is not None and self.epoch.fenced is not None) or self.failure is not None

    @property
    def failure(self) -> FrazilError | None:
        """Return why the log has ended. One that failed to sync its disk stays as it is until a restart."""
        failed = None if self.log is None else self.log.failed
        is_stored = self.log is not None and self.log.ack is AckLevel.OBJECT
        return failed if is_stored or isinstance(failed, LogFenced) else None


class NodeHost:
    """See `TopicHost`. `use` it with a broker before any topic is opened."""

    def __init__(
        self,
        storage: Storage,
        meta: MetaStore,
        objects: ObjectsOfLogs,
        uploader: Uploader,
        acks: AckedLogs,
        broker_id: str,
        addresses: Mapping[str, str],
        clock: Clock,
        threads_max: int,
        was_deleted: Callable[[TopicName, str], bool] = lambda _topic, _log_id: False,
    ) -> None:
        """`addresses` is the live mapping of the doors. `was_deleted` tells whether a log was deleted here."""
        self._storage = storage
        self._admission = storage.admission
        self._meta = meta
        self._objects = objects
        self._uploader = uploader
        self._acks = acks
        self._was_deleted = was_deleted
        self._broker_id = broker_id
        self._addresses = addresses
        self._clock = clock
        self._threads = Threads("frazil-topic-host", threads_max)
        self._broker: Broker | None = None
        self._opened: dict[TopicName, OpenedTopic] = {}
        self._adopting: dict[TopicName, tuple[str, int]] = {}
        """The logs whose adoption has begun, each with the epoch of its owner: it goes on in the epoch it has begun."""
        self._local: Mapping[TopicName, LocalLog] = {}
        """Replaced by each change."""
        self._local_changes = -1
        self._guard = threading.Lock()
        self._traffic: dict[str, tuple[int, int]] = {}
        self._looked_at = 0

    def use(self, broker: Broker) -> None:
        self._broker = broker

    def close(self) -> None:
        self._threads.close()

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "no broker is used yet"
        return self._broker

    # --- queries

    def load(self) -> None:
        """Read the records of all topics in the folder. Blocks; call it once, before any topic is opened."""
        for name in self._admission.names():
            self._see(name)

    def local(self) -> Mapping[TopicName, LocalLog]:
        """See `TopicHost.local`. A topic that was created here is among them once it was opened."""
        if self._admission.changes != self._local_changes:
            with self._guard:  # a topic that `_see` adds meanwhile is in the folder by then
                changes, names = self._admission.changes, self._admission.names()
                self._local = {name: one for name, one in self._local.items() if name in names}
                self._local_changes = changes
        return self._local

    def _see(self, topic: TopicName) -> TopicRecord | None:
        """Read the record of a topic in the folder, and remember it for `local`."""
        record = self._admission.record(topic)
        with self._guard:
            others = {name: one for name, one in self._local.items() if name != topic}
            self._local = others if record is None else {**others, topic: local_of(record)}
        return record

    def ended(self) -> Mapping[TopicName, FrazilError]:
        """Return the open topics whose logs have ended, and are to be opened again."""
        return {topic: ended for topic, one in list(self._opened.items()) if (ended := one.failure) is not None}

    async def look(self) -> Mapping[TopicName, FrazilError]:
        """Ask the object store which open topics other processes have taken over; some of them with each call.

        Needed while this broker does not hear of it from the metadata store. Raises `ObjectStoreUnavailable`.
        """
        topics = sorted(self._opened)
        some = topics[self._looked_at : self._looked_at + LOOKS_MAX]
        self._looked_at = 0 if len(some) < LOOKS_MAX else self._looked_at + LOOKS_MAX
        return await self._threads.run(self._look_at, some)

    def _look_at(self, topics: Sequence[TopicName]) -> Mapping[TopicName, FrazilError]:
        found: dict[TopicName, FrazilError] = {}
        for topic in topics:
            one = self._opened.get(topic)
            if one is None or one.log is None:
                continue
            try:
                one.log.look()
                if one.epoch is not None:
                    one.epoch.look()
            except (LogFenced, ObjectDamaged) as error:
                found[topic] = error
        return found | {topic: ended for topic, ended in self.ended().items() if topic in topics}

    def traffic(self) -> Mapping[TopicName, int]:
        found: dict[TopicName, int] = {}
        known: dict[str, tuple[int, int]] = {}
        for topic in self._storage.opened_topics():
            log = topic.log
            end, rows = log.written_end, log.written_end - log.first_offset
            size = sum(segment.used_bytes for segment in log.segments) // max(1, rows)
            before = self._traffic.get(log.opened, (end, size))[0]
            known[log.opened] = end, size
            if end > before:
                found[log.name] = (end - before) * size
        self._traffic = known
        return found

    def owned(self, log: TopicLog) -> KeyAt:
        """Return the record by which this broker owns a log as it has opened it. Blocks; raises `TryLater`."""
        opened, entry = self._opened.get(log.name), self._meta.get(topic_record_key(log.name))
        if opened is not None and entry is not None:
            identity = TopicIdentity.decode(entry.value)
            found = identity.logs.get(log.name)
            if (
                found is not None
                and (found.log_id, opened.log_id) == (log.log_id, log.log_id)
                and (identity.owner_of(log.name), identity.epoch_of(log.name)) == (self._broker_id, opened.owner_epoch)
            ):
                return KeyAt(entry.key, entry.revision)
        raise TryLater(f"{log.name} is not open here as its record says; try again")

    async def store_names_again(self) -> None:
        """Store which names producers have taken: the metadata store was restored, and may lack some."""
        for one in list(self._opened.values()):
            if one.log is not None and not one.log.closed:
                await self._threads.run(partial(one.log.tell_producers, again=True))

    # --- open

    async def open(self, topic: TopicName, identity: TopicIdentity) -> int:
        log, owner_epoch = identity.logs[topic], identity.epoch_of(topic)
        opened = self._opened.get(topic)
        if opened is None or not _is_current(opened, log, owner_epoch):
            await self._close_former(topic, log.log_id)
            was_here = False
            made = OpenedTopic(None, owner_epoch)
            if log.log_id is not None:
                made, was_here = await self._threads.run(self._open_log, topic, log, owner_epoch)
            self._opened[topic] = made
        else:
            made, was_here = opened, False
        await self.broker.adopt(topic, was_here=was_here)
        return 0 if made.epoch is None else made.epoch.number

    def _open_log(self, topic: TopicName, log: LogIdentity, owner_epoch: int) -> tuple[OpenedTopic, bool]:
        """Open a log that no other process may write from now on. Also returns whether it was in the folder."""
        with self.broker.identities.holding(topic):  # it may be being created or deleted here
            record = self._see(topic)
            if record is not None and local_of(record) != LocalLog(str(log.log_id), owner_epoch):
                raise TryLater(f"the folder has an earlier log of {topic}, which is put away first; try again")
            served = None if log.ack == AckLevel.OBJECT else self._served_here(topic, owner_epoch)
            if record is not None:
                if served is not None and served.log_id == log.log_id and served.object_epoch > record.object_epoch:
                    raise _needs_folder(topic, "is older than when it was served last")
                opened = self._open_folder(topic, record, owner_epoch)
                if opened is not None:
                    return opened, True
            elif served is not None:
                raise _needs_folder(topic, "is not there")
            return self._adopt(topic, log, owner_epoch), False

    def _open_folder(self, topic: TopicName, record: TopicRecord, owner_epoch: int) -> OpenedTopic | None:
        """Open the folder of a log; returns None if a power cut took rows that the store has, and puts it away.

        Refuses a folder that a power cut cannot explain: an older copy, after which this broker has written more.
        """
        self._admission.admit(topic)
        if record.ack is AckLevel.OBJECT:  # it makes its files those of the store by itself
            self._acks.take_over(record.log_id, topic)
            return self._ready(
                topic, owner_epoch, record.object_epoch, None
            )  # it records its own epoch when it is open
        log = self._storage.topic(str(topic), create=False).log
        epoch = self._begin(topic, log.log_id, log.first_offset)
        others = [one for one in epoch.objects.all() if one.epoch > record.object_epoch]
        may_lose = sync_mode_of(self._storage.settings.wal, record.ack) is not SyncMode.ALWAYS
        if others or (epoch.end > log.durable_end and not may_lose):
            self._withhold(topic)
            raise _needs_folder(topic, "is older than what it has uploaded")
        if epoch.end > log.durable_end:
            _log.warning("%s: the object store has rows that the files have lost: it goes on behind them", topic)
            self._put_away(topic)
            return None
        return self._ready(topic, owner_epoch, epoch.number, epoch)

    def _ready(self, topic: TopicName, owner_epoch: int, object_epoch: int, epoch: Epoch | None) -> OpenedTopic:
        """Remember the epochs in the folder of an open log, and let its rows be stored."""
        self._admission.remember(topic, owner_epoch, object_epoch)
        self._see(topic)
        log = self._storage.topic(str(topic), create=False).log
        self._attach(log, epoch)
        return OpenedTopic(log.log_id, owner_epoch, epoch, log)

    def _attach(self, log: TopicLog, epoch: Epoch | None) -> None:
        log.on_producers = partial(self._store_taken, log)
        if epoch is not None:
            self._uploader.attach(log, epoch)

    def _store_taken(self, log: TopicLog, taken: ProducersRecord) -> None:
        """Store the names that producers have taken, unless another broker owns the log by now: its names are newer."""
        for _ in range(STORE_TRIES_MAX):
            if store_taken(self._meta, log.log_id, taken, self.owned(log)):
                return
        raise TryLater(f"the record of {log.name} is changed by others all the time; try again")

    def _adopt(self, topic: TopicName, log: LogIdentity, owner_epoch: int) -> OpenedTopic:
        """Make the folder of a log that goes on behind its objects."""
        log_id, ack = str(log.log_id), AckLevel(log.ack or AckLevel.DISK)
        epoch: Epoch | None = None
        if self._adopting.get(topic) != (
            log_id,
            owner_epoch,
        ):  # another broker may have had it since an earlier attempt
            self._forget(log_id)
            self._adopting[topic] = log_id, owner_epoch
        loss = self._accepted_loss(topic, log_id) if ack is not AckLevel.OBJECT else None
        if ack is AckLevel.OBJECT:
            taken = self._acks.take_over(log_id, topic)
            number, end = taken.epoch, taken.end
        else:
            epoch = self._begin(topic, log_id, None if loss is None else loss.table_end or None)
            number, end = epoch.number, epoch.end
        found = self._objects.of(log_id).load().all()
        adopted = continuation(self._objects.store, log_id, found, end, self._stated(log))
        if loss is not None:
            adopted = loss.applied(adopted, found[-1].end if found else 0)
        self._storage.adopt_topic(str(topic), replace(adopted, ack=ack))
        self._adopting.pop(topic, None)
        self._see(topic)
        return self._ready(topic, owner_epoch, number, epoch)

    def _accepted_loss(self, topic: TopicName, log_id: str) -> AcceptedLoss | None:
        """Return None unless a move of the topic that accepts the loss is under way."""
        key = keys.topic_key(keys.MOVES, topic)
        entry = self._meta.get(key)
        move = None if entry is None else keys.read_record(key, entry.value, keys.MoveRecord.decode)
        if move is None or not move.accept_loss:
            return None
        with needs():
            from frazil.node.member.accepted_loss import AcceptedLoss
        return AcceptedLoss(self._storage.settings, topic, log_id)

    def _stated(self, log: LogIdentity) -> Stated:
        retention = None if log.retention is None else RetentionSettings(**log.retention)
        taken = read_taken(self._meta, str(log.log_id))
        manifests = self._objects.manifests
        dropped = () if manifests is None else manifests.dropped(str(log.log_id))
        return Stated(unpacked_schema(log.schema), log.created_us, retention, taken, dropped=dropped)

    def _begin(self, topic: TopicName, log_id: str, first: int | None) -> Epoch:
        address = self._addresses.get("advertised") or self._addresses.get("flight", "")
        claim = EpochClaim(self._broker_id, address)
        return begin_epoch(self._objects.of(log_id), str(topic), claim, self._clock, first=first)

    def _served_here(self, topic: TopicName, owner_epoch: int) -> keys.ServingRecord | None:
        """Return how this broker has served the topic in this epoch, if it has: then the folder has its rows."""
        key = keys.topic_key(keys.SERVING, topic)
        found = self._meta.get(key)
        serving = None if found is None else keys.read_record(key, found.value, keys.ServingRecord.decode)
        is_own = serving is not None and (serving.broker, serving.epoch) == (self._broker_id, owner_epoch)
        return serving if is_own else None

    # --- close

    async def upload(self, topic: TopicName) -> None:
        opened = self._opened.get(topic)
        if opened is not None and opened.log is not None and opened.epoch is not None:
            await self._threads.run(self._uploaded, opened.log)

    def _uploaded(self, log: TopicLog, *seconds_max: float) -> int:
        """Upload a log, and return its end; raises why it has failed: then its files must not be read again."""
        end = self._uploader.finish(log, *seconds_max)
        if log.failed is not None:
            raise log.failed
        return end

    async def close_and_upload(self, topic: TopicName) -> int:
        opened = self._opened.get(topic)
        if opened is None:
            raise TopicUnavailable(str(topic), "it is not open at this broker")
        await self.broker.release(topic)
        return 0 if opened.log_id is None else await self._threads.run(self._upload_and_close, topic)

    def _upload_and_close(self, topic: TopicName) -> int:
        for _ in range(CLOSE_TRIES_MAX):
            if topic not in self._storage.names():
                self._admission.admit(topic)
            log = self._attach_again(topic)
            uploaded = self._uploaded(log, CLOSE_SECONDS_MAX)
            self._admission.withhold(topic)
            if log.ack is AckLevel.OBJECT or log.written_end == uploaded:
                return uploaded
        raise TryLater(f"rows of {topic} are published all the time; try again")

    async def reopen(self, topic: TopicName) -> None:
        opened = self._opened[topic]
        if opened.log_id is not None:
            await self._threads.run(self._reopen_log, topic)
        await self.broker.adopt(topic, was_here=False)

    def _reopen_log(self, topic: TopicName) -> None:
        self._admission.admit(topic)
        self._attach_again(topic)

    def _attach_again(self, topic: TopicName) -> TopicLog:
        """Go on with an open log, or one that was closed to be given away. Raises `LogFenced`."""
        opened = self._opened[topic]
        if opened.epoch is not None:
            opened.epoch.check()
        log = self._storage.topic(str(topic), create=False).log
        self._attach(log, opened.epoch)
        self._opened[topic] = replace(opened, log=log)
        return log

    # --- discard

    async def discard(self, topic: TopicName) -> None:
        seen = self._local.get(topic)
        record = await self._threads.run(self._see, topic)
        if record is not None and local_of(record) != seen:
            return  # it was deleted and created again here: the caller decides anew
        await self._close_former(topic, None)
        self._adopting.pop(topic, None)
        await self._threads.run(self._put_away, topic)

    def forget(self, topic: TopicName) -> None:
        self._opened.pop(topic, None)
        self._adopting.pop(topic, None)

    async def _close_former(self, topic: TopicName, new_log_id: str | None) -> None:
        """Close a topic that is open with an earlier epoch, or of an earlier log: nothing of it is stored any more.

        The broker may have the new log already: then the topic was deleted and created again here.
        """
        opened = self._opened.pop(topic, None)
        if opened is not None and (new_log_id is None or opened.log_id == new_log_id):
            await self.broker.release(topic, stores_cursors=False)
            await self._threads.run(self._withhold, topic)

    def _put_away(self, topic: TopicName) -> None:
        """Remove the folder of a topic, or set it aside if it has acknowledged rows that are nowhere else."""
        record = self._admission.record(topic)
        if record is None:
            return
        self._uploader.forget(record.log_id)
        self._withhold(topic)
        self._forget(record.log_id)
        end = self._admission.end_of(topic)
        is_needless = record.ack is AckLevel.OBJECT or self._was_deleted(topic, record.log_id)
        if is_needless or (end is not None and end <= self._covered_end(record)):
            self._admission.remove(topic)
        elif (aside := self._admission.set_aside(topic)) is not None:
            self._report(topic, record, end, aside)
        self._see(topic)

    def _forget(self, log_id: str) -> None:
        """Forget which objects a log has, and the epoch that this process began. The log is not open."""
        self._acks.release(log_id)
        self._uploader.forget(log_id)

    def _withhold(self, topic: TopicName) -> None:
        try:
            self._admission.withhold(topic)
        except LogFailed as error:
            _log.warning("%s is closed as it is: %s", topic, error)

    def _report(self, topic: TopicName, record: TopicRecord, end: int | None, aside: Path) -> None:
        _log.error(
            "%s: another broker owns it, and rows of this folder are not in the object store: they are kept in %s",
            topic, aside, extra={"topic": str(topic), "log_id": record.log_id, "end": end},
        )  # fmt: skip

    def _covered_end(self, record: TopicRecord) -> int:
        """Return the offset up to which objects have the rows of a folder, or had them before retention.

        Those of later epochs may be others, as after an accepted loss.
        """
        objects = KnownLog(self._objects.store, self._objects.manifests, record.log_id).load().all()
        own = [one for one in objects if one.epoch <= record.object_epoch]
        return own[-1].end if own else end_of_epoch(self._objects.store, record.log_id, record.object_epoch)


def local_of(record: TopicRecord) -> LocalLog:
    """A log without an epoch was just created here, or is being adopted."""
    return LocalLog(record.log_id, record.owner_epoch or FIRST_EPOCH)


def _needs_folder(topic: TopicName, problem: str) -> TopicUnavailable:
    advice = f"restore it, or accept their loss with: frazil topics move {topic} --accept-loss"
    why = f"rows that were not uploaded were in the folder of this broker, which {problem}: {advice}"
    return TopicUnavailable(str(topic), why)


def _is_current(opened: OpenedTopic, log: LogIdentity, owner_epoch: int) -> bool:
    return (opened.log_id, opened.owner_epoch) == (log.log_id, owner_epoch) and not opened.has_ended
