"""Frazil: a streaming log whose history is an Apache Iceberg table.

    import frazil

    with frazil.open("frazil-data") as storage:
        orders = storage.topic("/default/orders")
        orders.publish("tea", key="anna")
        for message in orders.read("earliest"):
            print(message.offset, message.payload)

`frazil.aio` has the same for asyncio.

Names that need PyArrow, NumPy or Pydantic are imported on first use: a command line that only asks a server, and shell
completion, import none of them.
"""

import pkgutil
from typing import TYPE_CHECKING

from frazil.core.errors import (
    AnotherLeads,
    BatchTooLarge,
    BrokerOff,
    Closed,
    ConsumerReplaced,
    CorruptLog,
    DiskBudgetExceeded,
    DiskFull,
    EncodingFailed,
    Fenced,
    FolderInUse,
    FrazilError,
    GrantNotFound,
    HostRefused,
    IncompatibleSchema,
    InvalidInput,
    InvalidName,
    InvalidPosition,
    InvalidSchema,
    InvalidSettings,
    JobNotFound,
    LakeUnavailable,
    LeaseExpired,
    ListenFailed,
    LocksNotSupported,
    LogFailed,
    MessageRefused,
    MessageTooLarge,
    MetadataInUse,
    MetadataUnavailable,
    NamespaceExists,
    NamespaceInUse,
    NamespaceNotFound,
    NewerFormat,
    NobodyLeads,
    NotInstalled,
    NotSupported,
    OffsetOutOfRange,
    OriginRefused,
    OutcomeUnknown,
    Overloaded,
    OwnerUnreachable,
    PartitioningDiffers,
    PermissionDenied,
    ProducerFenced,
    QueryTooLarge,
    QueryTooLong,
    QuotaExceeded,
    ResourcesExhausted,
    RevisionCompacted,
    RowsMissing,
    SchemaMismatch,
    SchemaNotFound,
    SecurityOff,
    SequenceForgotten,
    SequenceGap,
    ServerNeeded,
    ServerUnreachable,
    SparkUnavailable,
    SubjectMismatch,
    SubscriptionNotFound,
    SubscriptionTaken,
    TableAhead,
    TableDamaged,
    TableNotFound,
    TableRefused,
    TableRolledBack,
    TooManyCalls,
    TooManyJobs,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TryLater,
    Unauthenticated,
    UnknownClient,
    UsedAfterFork,
    ValueNotStorable,
)
from frazil.core.offsets import OffsetRange
from frazil.core.sequences import ProducerState, Sent

if TYPE_CHECKING:
    from frazil import aio as aio
    from frazil.client.storage import RemoteStorage, connect
    from frazil.client.subscription import RemoteSubscription
    from frazil.client.topic import RemoteTopic
    from frazil.core.rows import Message
    from frazil.core.settings import RetentionSettings, Settings, SyncMode, WalSettings
    from frazil.log.stats import TopicStats
    from frazil.log.storage import Storage
    from frazil.log.topic import Topic
    from frazil.log.write.publishing import Outgoing
    from frazil.node.node import open_embedded as open  # noqa: A004 - `frazil.open` reads as it should
    from frazil.node.read_only import ReadOnlyStats, ReadOnlyStorage, ReadOnlyTopic, open_read_only

__version__ = "0.1.0"

__all__ = [
    "AnotherLeads",
    "BatchTooLarge",
    "BrokerOff",
    "Closed",
    "ConsumerReplaced",
    "CorruptLog",
    "DiskBudgetExceeded",
    "DiskFull",
    "EncodingFailed",
    "Fenced",
    "FolderInUse",
    "FrazilError",
    "GrantNotFound",
    "HostRefused",
    "IncompatibleSchema",
    "InvalidInput",
    "InvalidName",
    "InvalidPosition",
    "InvalidSchema",
    "InvalidSettings",
    "JobNotFound",
    "LakeUnavailable",
    "LeaseExpired",
    "ListenFailed",
    "LocksNotSupported",
    "LogFailed",
    "Message",
    "MessageRefused",
    "MessageTooLarge",
    "MetadataInUse",
    "MetadataUnavailable",
    "NamespaceExists",
    "NamespaceInUse",
    "NamespaceNotFound",
    "NewerFormat",
    "NobodyLeads",
    "NotInstalled",
    "NotSupported",
    "OffsetOutOfRange",
    "OffsetRange",
    "OriginRefused",
    "OutcomeUnknown",
    "Outgoing",
    "Overloaded",
    "OwnerUnreachable",
    "PartitioningDiffers",
    "PermissionDenied",
    "ProducerFenced",
    "ProducerState",
    "QueryTooLarge",
    "QueryTooLong",
    "QuotaExceeded",
    "ReadOnlyStats",
    "ReadOnlyStorage",
    "ReadOnlyTopic",
    "RemoteStorage",
    "RemoteSubscription",
    "RemoteTopic",
    "ResourcesExhausted",
    "RetentionSettings",
    "RevisionCompacted",
    "RowsMissing",
    "SchemaMismatch",
    "SchemaNotFound",
    "SecurityOff",
    "Sent",
    "SequenceForgotten",
    "SequenceGap",
    "ServerNeeded",
    "ServerUnreachable",
    "Settings",
    "SparkUnavailable",
    "Storage",
    "SubjectMismatch",
    "SubscriptionNotFound",
    "SubscriptionTaken",
    "SyncMode",
    "TableAhead",
    "TableDamaged",
    "TableNotFound",
    "TableRefused",
    "TableRolledBack",
    "TooManyCalls",
    "TooManyJobs",
    "Topic",
    "TopicDiffers",
    "TopicExists",
    "TopicInUse",
    "TopicNotFound",
    "TopicStats",
    "TryLater",
    "Unauthenticated",
    "UnknownClient",
    "UsedAfterFork",
    "ValueNotStorable",
    "WalSettings",
    "connect",
    "open",
    "open_read_only",
]

_LATER = {
    "Message": "frazil.core.rows:Message",
    "Outgoing": "frazil.log.write.publishing:Outgoing",
    "ReadOnlyStats": "frazil.node.read_only:ReadOnlyStats",
    "ReadOnlyStorage": "frazil.node.read_only:ReadOnlyStorage",
    "ReadOnlyTopic": "frazil.node.read_only:ReadOnlyTopic",
    "RemoteStorage": "frazil.client.storage:RemoteStorage",
    "RemoteSubscription": "frazil.client.subscription:RemoteSubscription",
    "RemoteTopic": "frazil.client.topic:RemoteTopic",
    "RetentionSettings": "frazil.core.settings:RetentionSettings",
    "Settings": "frazil.core.settings:Settings",
    "Storage": "frazil.log.storage:Storage",
    "SyncMode": "frazil.core.settings:SyncMode",
    "Topic": "frazil.log.topic:Topic",
    "TopicStats": "frazil.log.stats:TopicStats",
    "WalSettings": "frazil.core.settings:WalSettings",
    "aio": "frazil.aio",
    "connect": "frazil.client.storage:connect",
    "open": "frazil.node.node:open_embedded",
    "open_read_only": "frazil.node.read_only:open_read_only",
}

if not TYPE_CHECKING:  # a type checker would otherwise accept any name

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = pkgutil.resolve_name(_LATER[name])
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
