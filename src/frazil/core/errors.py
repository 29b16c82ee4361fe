"""Every error a caller can meet, grouped by what the caller can do about it.

FrazilError
├── InvalidInput            mend the call; nothing was written
│   ├── InvalidName
│   ├── InvalidSettings
│   ├── MessageTooLarge
│   ├── BatchTooLarge
│   ├── QueryTooLarge
│   ├── QueryTooLong
│   ├── SchemaMismatch
│   ├── ValueNotStorable
│   ├── InvalidSchema
│   ├── IncompatibleSchema
│   ├── SubjectMismatch
│   ├── MessageRefused
│   ├── InvalidPosition
│   └── OffsetOutOfRange
├── TopicNotFound           create it, or mend the name
├── SubscriptionNotFound    subscribe first, or mend the name
├── NamespaceNotFound       create it, or a topic in it
├── NamespaceExists         use the one that is there
├── NamespaceInUse          delete its topics first
├── TableNotFound           rows must be moved first, or mend the name
├── JobNotFound             it was never there, or ended long ago; start another
├── TopicExists             use the one that is there
│   └── PartitioningDiffers
├── TopicInUse              remove who uses it first, or say that it goes all the same
├── TopicDiffers            ask for what it is, or use another name
├── SubscriptionTaken       use the consumer's name that has it, or another subscription
├── ConsumerReplaced        another connection uses the consumer's name; end it, or take another name
├── BrokerOff               switch the broker on
├── ServerNeeded            start a server, or name one
├── ServerUnreachable       start that server, or name another
├── SchemaNotFound          register it, or mend the subject or version
├── ProducerFenced          another client has taken the producer's name; stop, or take it anew
├── SequenceGap             send from the expected sequence on; nothing was written
├── SequenceForgotten       whether the batch is stored is not known any more; look, then take the name anew
├── TryLater                the same call may succeed later; nothing was written
│   ├── UnknownClient
│   ├── Overloaded
│   ├── TooManyJobs
│   ├── TooManyCalls
│   ├── DiskFull
│   ├── DiskBudgetExceeded
│   ├── ResourcesExhausted
│   ├── OwnerUnreachable
│   ├── NobodyLeads
│   ├── AnotherLeads
│   └── Fenced
├── OutcomeUnknown          rows were sent and not answered; look whether they are there
├── EncodingFailed          rows could not be turned into Arrow (no memory); nothing was written
├── LakeUnavailable         the catalog or the object store can't be had; the log goes on without it
├── MetadataUnavailable     the store of metadata can't be had; it is asked again with the next call
├── RevisionCompacted       the changes since then are no longer known; list again, and watch from there
├── LeaseExpired            the lease is gone, and so is what it held; grant another
├── SparkUnavailable        Spark can't be started, or has died; look at `frazil doctor`
├── TableRefused            a table that does not fit its log; look before anything is moved
│   ├── TableRolledBack
│   ├── RowsMissing
│   ├── TableAhead
│   └── TableDamaged
├── NotInstalled            a package is missing: run the command that the message has
├── FolderInUse             another process owns the data folder
├── LocksNotSupported       file locks do nothing there; use another file system
├── MetadataInUse           another server uses this part of the metadata store; take another prefix
├── ListenFailed            the address cannot be listened on; choose another
├── NotSupported            leave the call out: it has no meaning here
├── HostRefused             use an address or an allowed name of the server
├── OriginRefused           call from a page of the server itself, or from no page
├── LogFailed               the disk failed; restart to recover what was acknowledged
├── CorruptLog              the bytes are wrong; look at `frazil log check`
├── UsedAfterFork           it belongs to the parent process; make one in this process
└── Closed                  the storage was closed
"""

from __future__ import annotations

from frazil.core.admin_errors import BrokerOff as BrokerOff
from frazil.core.admin_errors import ConsumerReplaced as ConsumerReplaced
from frazil.core.admin_errors import JobNotFound as JobNotFound
from frazil.core.admin_errors import NamespaceExists as NamespaceExists
from frazil.core.admin_errors import NamespaceInUse as NamespaceInUse
from frazil.core.admin_errors import NamespaceNotFound as NamespaceNotFound
from frazil.core.admin_errors import ServerNeeded as ServerNeeded
from frazil.core.admin_errors import ServerUnreachable as ServerUnreachable
from frazil.core.admin_errors import SubscriptionNotFound as SubscriptionNotFound
from frazil.core.admin_errors import TableNotFound as TableNotFound
from frazil.core.admin_errors import TopicInUse as TopicInUse
from frazil.core.disk_errors import DiskBudgetExceeded as DiskBudgetExceeded
from frazil.core.disk_errors import DiskFull as DiskFull
from frazil.core.disk_errors import ResourcesExhausted as ResourcesExhausted
from frazil.core.disk_errors import TryLater as TryLater
from frazil.core.error import FrazilError as FrazilError
from frazil.core.error import InvalidInput as InvalidInput
from frazil.core.process_errors import Fenced as Fenced
from frazil.core.process_errors import FolderInUse as FolderInUse
from frazil.core.process_errors import LocksNotSupported as LocksNotSupported
from frazil.core.process_errors import MetadataInUse as MetadataInUse
from frazil.core.process_errors import NotInstalled as NotInstalled
from frazil.core.process_errors import UsedAfterFork as UsedAfterFork
from frazil.core.serving_errors import HostRefused as HostRefused
from frazil.core.serving_errors import NotSupported as NotSupported
from frazil.core.serving_errors import OriginRefused as OriginRefused
from frazil.core.serving_errors import QueryTooLarge as QueryTooLarge
from frazil.core.serving_errors import QueryTooLong as QueryTooLong
from frazil.core.serving_errors import TooManyCalls as TooManyCalls
from frazil.core.table_errors import RowsMissing as RowsMissing
from frazil.core.table_errors import TableAhead as TableAhead
from frazil.core.table_errors import TableDamaged as TableDamaged
from frazil.core.table_errors import TableRefused as TableRefused
from frazil.core.table_errors import TableRolledBack as TableRolledBack


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidSettings(InvalidInput):
    code = "invalid_settings"


class MessageTooLarge(InvalidInput):
    code = "message_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        what = f"the message has {size_bytes} bytes, more than message_bytes_max = {limit_bytes}"
        super().__init__(what, size_bytes=size_bytes, limit_bytes=limit_bytes)


class BatchTooLarge(InvalidInput):
    code = "batch_too_large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        what = f"the batch has {size_bytes} bytes, more than batch_bytes_max = {limit_bytes}"
        super().__init__(f"{what}; send it in smaller batches", size_bytes=size_bytes, limit_bytes=limit_bytes)


class SchemaMismatch(InvalidInput):
    code = "schema_mismatch"


class ValueNotStorable(InvalidInput):
    """A value that no Iceberg table can hold: it could be written to the log, and never be moved."""

    code = "value_not_storable"

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"column {column!r}, row {row}: {reason}", field=column, row=row, reason=reason)


class InvalidSchema(InvalidInput):
    """A definition that is not one of its type."""

    code = "invalid_schema"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field, reason=reason)


class IncompatibleSchema(InvalidInput):
    code = "incompatible_schema"

    def __init__(self, subject: str, version: int, mode: str, reasons: list[str]) -> None:
        what = f"the schema does not fit version {version} of {subject} (compatibility {mode}): {'; '.join(reasons)}"
        super().__init__(what, subject=subject, version=version, mode=mode, reasons=reasons)


class SubjectMismatch(InvalidInput):
    """A topic has one subject, that of its first producer with a schema."""

    code = "subject_mismatch"

    def __init__(self, topic: str, subject: str, wanted: str) -> None:
        super().__init__(
            f"the schemas of {topic} are those of the subject {subject}, not of {wanted}; "
            "use that subject, or let an administrator configure the topic",
            topic=topic,
            subject=subject,
            wanted=wanted,
        )


class MessageRefused(InvalidInput):
    """The topic enforces its schema, and the message does not fit."""

    code = "message_refused"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic} enforces its schema: {reason}", topic=topic, reason=reason)


class InvalidPosition(InvalidInput):
    code = "invalid_position"


class OffsetOutOfRange(InvalidInput):
    """The log no longer has, or does not yet have, that offset."""

    code = "offset_out_of_range"

    def __init__(self, topic: str, offset: int, first: int, end: int) -> None:
        what = f"{topic} has offsets {first} up to {end}, not {offset}"
        super().__init__(what, topic=topic, offset=offset, first=first, end=end)


class TopicNotFound(FrazilError):
    code = "topic_not_found"

    def __init__(self, topic: str, reason: str | None = None) -> None:
        what = f"make it with: frazil topics create {topic}" if reason is None else reason
        super().__init__(f"there is no topic {topic}; {what}", topic=topic)


class TopicExists(FrazilError):
    code = "topic_exists"

    def __init__(self, topic: str) -> None:
        super().__init__(f"the topic {topic} exists already", topic=topic)


class PartitioningDiffers(TopicExists):
    """A topic is there in the other form: with partitions, or without."""

    code = "partitioning_differs"

    def __init__(self, topic: str, form: str) -> None:
        FrazilError.__init__(self, f"topic {topic} exists {form}; use another name", topic=topic)


class TopicDiffers(FrazilError):
    """The topic is not as the caller wants it; what it was made with stays."""

    code = "topic_differs"

    def __init__(self, topic: str, how: str) -> None:
        super().__init__(f"{topic} is not as asked for: {how}", topic=topic)


class SubscriptionTaken(FrazilError):
    """An exclusive subscription belongs to the first consumer, also while that one is away."""

    code = "subscription_taken"

    def __init__(self, topic: str, subscription: str, consumer: str) -> None:
        super().__init__(
            f"the subscription {subscription} of {topic} is exclusive, and {consumer} has it; "
            "use that consumer's name, or another subscription",
            topic=topic,
            subscription=subscription,
            consumer=consumer,
        )


class SchemaNotFound(FrazilError):
    code = "schema_not_found"

    def __init__(self, subject: str | None = None, version: int | None = None, schema_id: int | None = None) -> None:
        what = f"subject {subject}" if schema_id is None else f"schema id {schema_id}"
        super().__init__(
            f"there is no {what}" if version is None else f"{what} has no version {version}",
            subject=subject,
            version=version,
            schema_id=schema_id,
        )


class ProducerFenced(FrazilError):
    """A name has one client at a time: the last that took it."""

    code = "producer_fenced"

    def __init__(self, topic: str, producer: str, epoch: int, current: int) -> None:
        what = f"another client has the name (epoch {current}, this is {epoch}); stop, or take it with open_producer"
        fields = {"topic": topic, "producer": producer, "epoch": epoch, "current": current}
        super().__init__(f"producer {producer!r} of {topic}: {what}", **fields)


class SequenceGap(FrazilError):
    code = "sequence_gap"

    def __init__(self, topic: str, producer: str, sequence: int, expected: int) -> None:
        what = f"the next sequence is {expected}, not {sequence}; send the rows from {expected} on first"
        fields = {"topic": topic, "producer": producer, "sequence": sequence, "expected": expected}
        super().__init__(f"producer {producer!r} of {topic}: {what}", **fields)


class SequenceForgotten(FrazilError):
    """Neither new nor known to be the same as before: whether to store it is not for the log to guess."""

    code = "sequence_forgotten"

    def __init__(self, topic: str, producer: str, sequence: int, expected: int) -> None:
        what = f"no batch of this size at sequence {sequence} is remembered, and the next is {expected}"
        advice = "look whether its rows are stored, then go on from open_producer"
        fields = {"topic": topic, "producer": producer, "sequence": sequence, "expected": expected}
        super().__init__(f"producer {producer!r} of {topic}: {what}; {advice}", **fields)


class UnknownClient(TryLater):
    """The id of a producer or consumer means nothing here; create it, or subscribe, again."""

    code = "unknown_client"

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(f"there is no {kind} with id {number}; make it again", kind=kind, id=number)


class Overloaded(TryLater):
    """A bounded queue is full: that is back-pressure, not a failure."""

    code = "overloaded"

    def __init__(self, queue: str, limit_bytes: int, retry_after_ms: int) -> None:
        what = f"the {queue} queue is full ({limit_bytes} bytes); try again in {retry_after_ms} ms"
        super().__init__(what, queue=queue, limit_bytes=limit_bytes, retry_after_ms=retry_after_ms)


class TooManyJobs(TryLater):
    code = "too_many_jobs"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs wait already; try again when one has ended, or cancel one", limit=limit)


class OwnerUnreachable(TryLater):
    """Only the owner of a folder knows what is durable: without it nothing is moved."""

    code = "owner_unreachable"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the process that owns the folder does not answer at {address} ({reason}); is `frazil serve` running?",
            address=address,
            reason=reason,
        )


class AnotherLeads(TryLater):
    """Several movers may run; the owner of the folder lets one of them move."""

    code = "another_leads"

    def __init__(self, host: str, pid: int) -> None:
        super().__init__(
            f"another mover leads (process {pid} on {host}) and moves what is there; "
            "wait for it, or stop it first: see `frazil pipeline status`",
            host=host,
            pid=pid,
        )


class NobodyLeads(TryLater):
    """A mover without the lead is not heard."""

    code = "nobody_leads"

    def __init__(self) -> None:
        super().__init__("no mover leads now, so none is heard; ask for the lead first")


class OutcomeUnknown(FrazilError):
    """Rows were sent and never answered: they may be stored, or not."""

    code = "outcome_unknown"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"whether the rows were stored in {topic} is not known ({reason}); read its end before you send them again",
            topic=topic,
            reason=reason,
        )


class EncodingFailed(FrazilError):
    code = "encoding_failed"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"rows for {topic} could not be encoded: {reason}", topic=topic, reason=reason)


class LakeUnavailable(FrazilError):
    code = "lake_unavailable"

    def __init__(self, setting: str, reason: str, advice: str | None = None) -> None:
        what = f"cannot be reached ({reason}); see the settings under `{setting}`"
        super().__init__(f"{setting}: {what if advice is None else f'{reason}; {advice}'}", setting=setting)


class MetadataUnavailable(FrazilError):
    """`unclear`: a change was asked for, and whether it was made is not known."""

    code = "metadata_unavailable"

    def __init__(self, endpoint: str, reason: str, *, unclear: bool = False) -> None:
        look = "; whether the change was made is not known: look again" if unclear else ""
        super().__init__(
            f"metadata: {endpoint} cannot be used ({reason}); see the settings under `metadata`{look}",
            endpoint=endpoint,
            reason=reason,
            unclear=unclear,
        )


class RevisionCompacted(FrazilError):
    """A store keeps the changes of a while, not all."""

    code = "revision_compacted"

    def __init__(self, prefix: str, revision: int) -> None:
        super().__init__(
            f"the changes of {prefix} after revision {revision} are no longer known; list again, and watch from there",
            prefix=prefix,
            revision=revision,
        )


class LeaseExpired(FrazilError):
    code = "lease_expired"

    def __init__(self, lease_id: int) -> None:
        super().__init__(
            f"the lease {lease_id} has expired or was given back, and what it held is gone; grant another",
            lease_id=lease_id,
        )


class SparkUnavailable(FrazilError):
    code = "spark_unavailable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Spark cannot run: {reason}; see `frazil doctor`", reason=reason)


class ListenFailed(FrazilError):
    code = "listen_failed"

    def __init__(self, host: str, port: int, reason: str, setting: str = "--port or http.port") -> None:
        super().__init__(
            f"cannot listen on {host}:{port} ({reason}); choose another port with {setting}",
            host=host,
            port=port,
            reason=reason,
        )


class LogFailed(FrazilError):
    """A sync or write failed: what is on the disk is unknown, so nothing more is acknowledged."""

    code = "log_failed"

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"the log of {topic} failed ({reason}) and takes no more messages; "
            "reads go on, and a restart recovers everything that was acknowledged",
            topic=topic,
            reason=reason,
        )


SEE_CHECK = "; see `frazil log check`"


class CorruptLog(FrazilError):
    """Bytes that must be right are not; nothing is cut or skipped without `frazil log repair`."""

    code = "corrupt_log"

    def __init__(self, path: str, position: int, reason: str) -> None:
        what = f"{path} is corrupt at byte {position}: {reason}{SEE_CHECK}"
        super().__init__(what, path=path, position=position, reason=reason)


class Closed(FrazilError):
    code = "closed"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed")
