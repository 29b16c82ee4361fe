"""Every error a caller can meet, grouped by what the caller can do about it.

FrazilError
├── InvalidInput            fix the call; nothing was written
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
│   ├── RequestTooLarge
│   ├── EncodingRefused
│   └── OffsetOutOfRange
├── TopicNotFound           create it, or fix the name
├── SubscriptionNotFound    subscribe first, or fix the name
├── NamespaceNotFound       create it, or a topic in it
├── NamespaceExists         use the existing one
├── NamespaceInUse          delete its topics first
├── TableNotFound           rows must be moved first, or fix the name
├── JobNotFound             unknown, or ended long ago; start another
├── TopicExists             use the existing one
│   └── PartitioningDiffers
├── TopicInUse              remove its users first, or force the deletion
├── TopicDiffers            request its actual settings, or use another name
├── SubscriptionTaken       use its consumer's name, or another subscription
├── ConsumerReplaced        another connection uses the name of the consumer; end it, or use another name
├── BrokerOff               switch the broker on
├── BrokerNotFound          fix the id of the broker
├── ClusterOff              there is no other broker
├── PartitionsElsewhere     call for each partition by its name
├── LossNotAccepted         start the broker that has the rows, or accept their loss
├── ServerNeeded            start a server, or name one
├── ServerUnreachable       start that server, or name another
├── SchemaNotFound          register it, or fix the subject or version
├── ProducerFenced          another client has taken over the producer name; stop, or reopen it
├── SequenceGap             send from the expected sequence on; nothing was written
├── SequenceForgotten       whether the batch is stored is unknown; check, then reopen the producer
├── TryLater                the same call may succeed later; nothing was written
│   ├── UnknownClient
│   ├── Overloaded
│   ├── TooManyJobs
│   ├── TooManyCalls
│   ├── QuotaExceeded
│   ├── DiskFull
│   ├── DiskBudgetExceeded
│   ├── ResourcesExhausted
│   ├── ObjectStoreUnavailable
│   ├── LogFenced
│   ├── NotOwner
│   ├── TopicUnavailable
│   ├── OwnerUnreachable
│   ├── NobodyLeads
│   ├── AnotherLeads
│   └── Fenced
├── OutcomeUnknown          rows were sent but not answered; check whether they are stored
├── EncodingFailed          rows could not be turned into Arrow (no memory); nothing was written
├── LakeUnavailable         the catalog or the object store is unreachable; the log works without it
├── MetadataUnavailable     the metadata store is unreachable; the next call retries
├── RevisionCompacted       older changes are gone; list again, and watch from there
├── LeaseExpired            the lease and its keys are gone; grant another
├── SparkUnavailable        Spark cannot start, or has died; see `frazil doctor`
├── ObjectsAhead            the log was set back behind its objects; nothing is uploaded
├── ObjectsDiffer           a copy of the folder has uploaded other rows; nothing is uploaded
├── TableRefused            the table does not match its log; inspect it before moving rows
│   ├── TableRolledBack
│   ├── RowsMissing
│   ├── DerivedTableBehind
│   ├── TableAhead
│   └── TableDamaged
├── NotInstalled            a package is missing; run the command in the message
├── FolderInUse             another process owns the data folder
├── LocksNotSupported       file locks do nothing there; use another file system
├── MetadataInUse           another server uses this part of the metadata store; take another prefix
├── ListenFailed            the address cannot be listened on; choose another
├── NotSupported            leave the call out: Frazil does not implement it
├── Unauthenticated         send valid credentials
├── PermissionDenied        ask an administrator for a role
├── SecurityOff             switch security on
├── GrantNotFound           create the key, role or binding, or fix its name
├── TenantNotFound          create it, or fix its name
├── TenantExists            use the existing one, or finish its deletion
├── TenantInUse             remove the users of its topics first, or force the deletion
├── DatasetNotFound         send to it, or fix its name
├── TelemetryOff            switch telemetry on
├── TraceNotFound           fix its id, or name the dataset
├── HostRefused             use an address or an allowed name of the server
├── OriginRefused           call from a page of the server itself, or from no page
├── LogFailed               the disk failed; restart to recover what was acknowledged
├── CorruptLog              the bytes are wrong; see `frazil log check`
│   ├── ObjectDamaged       an object of the object tier is missing, cut or changed
│   └── NewerFormat         a newer Frazil wrote it; open it with that version
├── RestoreRefused          use a folder without topics, or say which log to leave out
├── UsedAfterFork           it belongs to the parent process; create one in this process
└── Closed                  the storage was closed
"""

from __future__ import annotations

from frazil.core.errors.access import GrantNotFound as GrantNotFound
from frazil.core.errors.access import PermissionDenied as PermissionDenied
from frazil.core.errors.access import QuotaExceeded as QuotaExceeded
from frazil.core.errors.access import SecurityOff as SecurityOff
from frazil.core.errors.access import Unauthenticated as Unauthenticated
from frazil.core.errors.admin import BrokerOff as BrokerOff
from frazil.core.errors.admin import ConsumerReplaced as ConsumerReplaced
from frazil.core.errors.admin import JobNotFound as JobNotFound
from frazil.core.errors.admin import NamespaceExists as NamespaceExists
from frazil.core.errors.admin import NamespaceInUse as NamespaceInUse
from frazil.core.errors.admin import NamespaceNotFound as NamespaceNotFound
from frazil.core.errors.admin import ServerNeeded as ServerNeeded
from frazil.core.errors.admin import ServerUnreachable as ServerUnreachable
from frazil.core.errors.admin import SubscriptionNotFound as SubscriptionNotFound
from frazil.core.errors.admin import SubscriptionTaken as SubscriptionTaken
from frazil.core.errors.admin import TableNotFound as TableNotFound
from frazil.core.errors.admin import TopicInUse as TopicInUse
from frazil.core.errors.base import FrazilError as FrazilError
from frazil.core.errors.base import InvalidInput as InvalidInput
from frazil.core.errors.cluster import BrokerNotFound as BrokerNotFound
from frazil.core.errors.cluster import ClusterOff as ClusterOff
from frazil.core.errors.cluster import LossNotAccepted as LossNotAccepted
from frazil.core.errors.cluster import NotOwner as NotOwner
from frazil.core.errors.cluster import PartitionsElsewhere as PartitionsElsewhere
from frazil.core.errors.cluster import TopicUnavailable as TopicUnavailable
from frazil.core.errors.disk import DiskBudgetExceeded as DiskBudgetExceeded
from frazil.core.errors.disk import DiskFull as DiskFull
from frazil.core.errors.disk import ResourcesExhausted as ResourcesExhausted
from frazil.core.errors.disk import TryLater as TryLater
from frazil.core.errors.log import SEE_CHECK as SEE_CHECK
from frazil.core.errors.log import CorruptLog as CorruptLog
from frazil.core.errors.log import LogFailed as LogFailed
from frazil.core.errors.log import NewerFormat as NewerFormat
from frazil.core.errors.objects import LogFenced as LogFenced
from frazil.core.errors.objects import ObjectDamaged as ObjectDamaged
from frazil.core.errors.objects import ObjectsAhead as ObjectsAhead
from frazil.core.errors.objects import ObjectsDiffer as ObjectsDiffer
from frazil.core.errors.objects import ObjectStoreUnavailable as ObjectStoreUnavailable
from frazil.core.errors.objects import RestoreRefused as RestoreRefused
from frazil.core.errors.process import Fenced as Fenced
from frazil.core.errors.process import FolderInUse as FolderInUse
from frazil.core.errors.process import LocksNotSupported as LocksNotSupported
from frazil.core.errors.process import MetadataInUse as MetadataInUse
from frazil.core.errors.process import NotInstalled as NotInstalled
from frazil.core.errors.process import UsedAfterFork as UsedAfterFork
from frazil.core.errors.serving import HostRefused as HostRefused
from frazil.core.errors.serving import NotSupported as NotSupported
from frazil.core.errors.serving import OriginRefused as OriginRefused
from frazil.core.errors.serving import QueryTooLarge as QueryTooLarge
from frazil.core.errors.serving import QueryTooLong as QueryTooLong
from frazil.core.errors.serving import TooManyCalls as TooManyCalls
from frazil.core.errors.table import DerivedTableBehind as DerivedTableBehind
from frazil.core.errors.table import RowsMissing as RowsMissing
from frazil.core.errors.table import TableAhead as TableAhead
from frazil.core.errors.table import TableDamaged as TableDamaged
from frazil.core.errors.table import TableRefused as TableRefused
from frazil.core.errors.table import TableRolledBack as TableRolledBack
from frazil.core.errors.telemetry import DatasetNotFound as DatasetNotFound
from frazil.core.errors.telemetry import EncodingRefused as EncodingRefused
from frazil.core.errors.telemetry import RequestTooLarge as RequestTooLarge
from frazil.core.errors.telemetry import TelemetryOff as TelemetryOff
from frazil.core.errors.telemetry import TenantExists as TenantExists
from frazil.core.errors.telemetry import TenantInUse as TenantInUse
from frazil.core.errors.telemetry import TenantNotFound as TenantNotFound
from frazil.core.errors.telemetry import TraceNotFound as TraceNotFound


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
    """A value that no Iceberg table can hold: it could be written to the log but never moved."""

    code = "value_not_storable"

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"column {column!r}, row {row}: {reason}", field=column, row=row, reason=reason)


class InvalidSchema(InvalidInput):
    """The definition is not valid for its schema type."""

    code = "invalid_schema"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field, reason=reason)


class IncompatibleSchema(InvalidInput):
    code = "incompatible_schema"

    def __init__(self, subject: str, version: int, mode: str, reasons: list[str]) -> None:
        what = f"the schema does not fit version {version} of {subject} (compatibility {mode}): {'; '.join(reasons)}"
        super().__init__(what, subject=subject, version=version, mode=mode, reasons=reasons)


class SubjectMismatch(InvalidInput):
    """A topic has one subject: that of its first producer with a schema."""

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
    """The topic enforces its schema, and the message does not match it."""

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
        what = f"create it with: frazil topics create {topic}" if reason is None else reason
        super().__init__(f"there is no topic {topic}; {what}", topic=topic)


class TopicExists(FrazilError):
    code = "topic_exists"

    def __init__(self, topic: str) -> None:
        super().__init__(f"the topic {topic} already exists", topic=topic)


class PartitioningDiffers(TopicExists):
    """The topic exists in the other form: with partitions, or without."""

    code = "partitioning_differs"

    def __init__(self, topic: str, form: str) -> None:
        FrazilError.__init__(self, f"topic {topic} exists {form}; use another name", topic=topic)


class TopicDiffers(FrazilError):
    """The topic's settings differ from the requested ones; the settings it was created with stay."""

    code = "topic_differs"

    def __init__(self, topic: str, how: str) -> None:
        super().__init__(f"{topic} is not as asked for: {how}", topic=topic)


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
    """A producer name has one client at a time: the last one that opened it."""

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
    """The batch is neither new nor a known duplicate, so the log cannot tell whether to store it."""

    code = "sequence_forgotten"

    def __init__(self, topic: str, producer: str, sequence: int, expected: int) -> None:
        what = f"no batch of this size at sequence {sequence} is remembered, and the next is {expected}"
        advice = "look whether its rows are stored, then go on from open_producer"
        fields = {"topic": topic, "producer": producer, "sequence": sequence, "expected": expected}
        super().__init__(f"producer {producer!r} of {topic}: {what}; {advice}", **fields)


class UnknownClient(TryLater):
    """The producer or consumer id is unknown; create the producer, or subscribe, again."""

    code = "unknown_client"

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(f"there is no {kind} with id {number}; create it again", kind=kind, id=number)


class Overloaded(TryLater):
    """A bounded queue is full: this is back-pressure, not a failure."""

    code = "overloaded"

    def __init__(self, queue: str, limit_bytes: int, retry_after_ms: int) -> None:
        what = f"the {queue} queue is full ({limit_bytes} bytes); try again in {retry_after_ms} ms"
        super().__init__(what, queue=queue, limit_bytes=limit_bytes, retry_after_ms=retry_after_ms)


class TooManyJobs(TryLater):
    code = "too_many_jobs"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs already wait; try again when one has ended, or cancel one", limit=limit)


class OwnerUnreachable(TryLater):
    """Only the owner of a folder knows what is durable; without it nothing is moved."""

    code = "owner_unreachable"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"the process that owns the folder does not answer at {address} ({reason}); is `frazil serve` running?",
            address=address,
            reason=reason,
        )


class AnotherLeads(TryLater):
    """Several movers may run; the owner of the folder grants the lead to one of them."""

    code = "another_leads"

    def __init__(self, host: str, pid: int) -> None:
        super().__init__(
            f"another mover leads (process {pid} on {host}) and moves the rows; "
            "wait for it, or stop it first: see `frazil pipeline status`",
            host=host,
            pid=pid,
        )


class NobodyLeads(TryLater):
    """The owner ignores a mover that does not hold the lead."""

    code = "nobody_leads"

    def __init__(self) -> None:
        super().__init__("no mover leads now, so reports are ignored; acquire the lead first")


class OutcomeUnknown(FrazilError):
    """Rows were sent but not answered: they may or may not be stored."""

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
    """`unclear` means that a change was requested and its outcome is unknown."""

    code = "metadata_unavailable"

    def __init__(self, endpoint: str, reason: str, *, unclear: bool = False) -> None:
        look = "; whether the change was made is unknown: check again" if unclear else ""
        super().__init__(
            f"metadata: {endpoint} cannot be used ({reason}); see the settings under `metadata`{look}",
            endpoint=endpoint,
            reason=reason,
            unclear=unclear,
        )


class RevisionCompacted(FrazilError):
    """The store keeps only recent changes."""

    code = "revision_compacted"

    def __init__(self, prefix: str, revision: int) -> None:
        super().__init__(
            f"the changes of {prefix} after revision {revision} are no longer stored; list again, and watch from there",
            prefix=prefix,
            revision=revision,
        )


class LeaseExpired(FrazilError):
    code = "lease_expired"

    def __init__(self, lease_id: int) -> None:
        super().__init__(
            f"the lease {lease_id} has expired or was revoked, and its keys are gone; grant another",
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


class Closed(FrazilError):
    code = "closed"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed")
