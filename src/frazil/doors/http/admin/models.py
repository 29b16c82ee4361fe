"""Request and response models of the admin API. Fields are those of the verbs' `--json`; names end with their unit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, WithJsonSchema

from frazil.core.partitions import PARTITIONS_MAX
from frazil.core.rows.columns import SCHEMA_CHARACTERS_MAX
from frazil.core.settings import AckLevel, RetentionSettings
from frazil.doors.http.admin.paging import Page
from frazil.doors.http.admin.paths import TOPIC_EXTRA, TopicText

INT_MAX = 2**53 - 1
"""The largest integer that every JSON reader supports."""


def _number(value: object) -> object:
    """Refuse strings and booleans, which Pydantic accepts as numbers by default."""
    if isinstance(value, str | bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - for Pydantic
    return value


IsNumber = BeforeValidator(_number)
Offset = Annotated[int, Field(ge=0, le=INT_MAX), IsNumber]
Positive = Annotated[int, Field(gt=0, le=INT_MAX), IsNumber]
Topic = Annotated[TopicText, Field(json_schema_extra=TOPIC_EXTRA)]
Moment = Annotated[datetime, WithJsonSchema({"type": "string", "format": "date-time"})]


class Given(BaseModel):
    """Input models: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(BaseModel):
    """`error` is the code of the error, `message` says what to do; further fields depend on the error."""

    model_config = ConfigDict(extra="allow")

    error: str
    message: str


# --- topics


class Column(Given):
    name: str = Field(min_length=1)
    type: str = Field(description="as Arrow names it: int64, string, timestamp[us, tz=UTC], list<string>, …")
    nullable: StrictBool = True


class Retention(Given):
    """How long whole segments are kept; null is for ever. With `until_acked`, at least until every subscription has
    acknowledged them."""

    age_ms: Positive | None = None
    bytes: Positive | None = None
    until_acked: StrictBool = False

    def as_settings(self) -> RetentionSettings:
        return RetentionSettings(age_ms=self.age_ms, bytes=self.bytes, until_acked=self.until_acked)


class RetentionModel(BaseModel):
    age_ms: int | None
    bytes: int | None
    until_acked: bool


class NewTopic(Given):
    topic: Topic
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX), IsNumber] = Field(
        0, description="0 creates one topic; n creates `…-part-0` up to `…-part-(n-1)`"
    )
    reliable: StrictBool = Field(True, description="false: a topic that stores nothing")
    columns: list[Column] | None = Field(
        None, alias="schema", min_length=1, description="columns of a typed topic; null for messages"
    )
    arrow_schema: Annotated[str, Field(max_length=SCHEMA_CHARACTERS_MAX)] | None = Field(
        None, description="the same as a schema in Arrow's IPC form, in base64: any type, including nested ones"
    )
    retention: Retention | None = None
    ack: AckLevel | None = Field(None, description="what rows have reached when acknowledged; null: as `wal.ack` says")


class MadeTopic(BaseModel):
    topic: str
    log_id: str | None = Field(description="null for a topic with partitions, or without a log")
    typed: bool
    partitions: list[str]


class TopicSummary(BaseModel):
    """A topic as in `frazil topics list --json`, with the broker's fields: null if the broker is off.

    In a cluster, only the owner of a topic knows its figures: they are null at the other brokers."""

    topic: str
    log_id: str | None
    typed: bool | None
    messages: int | None
    first_offset: int | None
    end: int | None
    segments: int | None
    bytes: int | None
    created_us: int | None
    columns: list[Column] | None = Field(alias="schema")
    retention: RetentionModel | None = Field(description="its own; null if that of the settings applies")
    ack: AckLevel | None = Field(description="what its rows have reached when acknowledged; null if it is unknown")
    problem: str | None
    reliable: bool | None
    producers: int | None
    subscriptions: int | None
    owner: str | None = Field(
        description="the broker that serves it; null while there is none, and for a topic with partitions"
    )


class TierModel(BaseModel):
    """What a tier holds of a topic. With an `error` it is as of `learnt_us`."""

    first: int | None = Field(description="the first offset; null if it has none")
    end: int | None = Field(description="the offset after its last row")
    rows: int | None
    bytes: int | None
    lag_rows: int | None = Field(description="rows at the end of the topic that are missing here")
    lag_ms: int | None = Field(description="age of the oldest of them")
    learnt_us: int | None
    error: str | None = Field(description="why the tier did not answer")


class TableTierModel(TierModel):
    table: str
    snapshot_id: int | None
    committed_ms: int | None


class TiersModel(BaseModel):
    log: TierModel
    table: TableTierModel | None = Field(description="null for a topic that is not moved")
    objects: TierModel | None = Field(None, description="null if the log is not uploaded to an object store")


class HeldBackModel(BaseModel):
    """Why rows past their retention are still in the log."""

    guard: str = Field(description="table, objects or subscriptions")
    since_us: int
    floor: int | None = Field(description="rows below this offset may be removed; null if the guard cannot answer")
    error: str | None = Field(description="why the guard cannot answer")


class TopicDescription(TopicSummary):
    """With the figures of the log, null if it cannot be opened or does not exist."""

    durable_end: int | None
    unsynced: int | None
    reserved_bytes: int | None
    cached_from: int | None
    queued_bytes: int | None
    last_append_time_us: int | None
    torn_tail: str | None
    failed: str | None
    held_back: HeldBackModel | None = Field(description="null if no guard holds back what retention would remove")
    tiers: TiersModel | None
    partition_of: str | None = Field(description="the topic that this is a partition of")
    partitions: list[TopicSummary] = Field(
        description="its partitions, if any: then its own figures are their sums, and null where they differ"
    )


class TopicPage(Page[TopicSummary]):
    pass


class NamePage(Page[str]):
    pass


class DeletedTopic(BaseModel):
    topic: str
    deleted: bool
    messages: int | None


class TopicRetention(BaseModel):
    """`retention` is the topic's own, null if it has none; `effective` is what applies."""

    topic: str
    retention: RetentionModel | None
    effective: RetentionModel


# --- subscriptions


class SubscriptionModel(BaseModel):
    """`cursor`: everything below is acknowledged. Stored fields are null for a non-reliable topic."""

    topic: str
    subscription: str
    type: Literal["exclusive", "shared", "failover", "key-shared"]
    reliable: bool
    cursor: int | None
    durable: int | None = Field(description="the cursor after a crash")
    end: int | None = Field(description="the end of the topic")
    lag: int | None = Field(description="unacknowledged messages")
    in_flight: int = Field(description="sent, and not yet answered")
    resting: int = Field(description="waiting for redelivery")
    blocked_by: int | None = Field(description="offset of a message that nothing may overtake")
    snapshot_id: int | None = Field(description="the table's snapshot that added `file`")
    file: str | None = Field(description="the table's file with the last row before the cursor that was searched")
    dropped: int = Field(description="for a non-reliable topic: messages that no consumer received")
    consumers: int
    connected: int


class SubscriptionPage(Page[SubscriptionModel]):
    pass


class ConsumerModel(BaseModel):
    topic: str
    subscription: str
    consumer: str
    id: str
    connected: bool
    in_flight: int
    key_filters: list[str]


class ConsumerPage(Page[ConsumerModel]):
    pass


class ProducerModel(BaseModel):
    topic: str
    producer: str
    id: str


class ProducerPage(Page[ProducerModel]):
    pass


class DeletedSubscription(BaseModel):
    topic: str
    subscription: str
    deleted: bool


def _with_zone(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("needs a time zone, as 2026-01-31T12:00:00Z")
    return text


class ToEnd(Given):
    to: Literal["earliest", "latest"]


class ToOffset(Given):
    to: Literal["offset"]
    offset: Offset


class ToTime(Given):
    to: Literal["time"]
    time: Annotated[str, AfterValidator(_with_zone)] = Field(
        max_length=64,
        json_schema_extra={"format": "date-time"},
        description="with a time zone, as 2026-01-31T12:00:00Z: the first message appended at or after it",
    )


Reset = Annotated[ToEnd | ToOffset | ToTime, Field(discriminator="to")]


# --- dead letters


class DeadLetter(BaseModel):
    """`payload` and `key` are base64; `text` is the payload if it is UTF-8."""

    offset: int = Field(description="the offset in the dead-letter topic")
    append_time: Moment
    publish_time: Moment
    payload: str
    text: str | None
    key: str | None
    attributes: dict[str, str]
    producer: str | None
    schema_id: int | None
    schema_version: int | None
    original_topic: str | None
    original_subscription: str | None
    original_offset: int | None
    original_producer_id: str | None
    original_broker: str | None = Field(description="the address of the broker that gave it up")
    redeliveries: int | None
    reason: str | None


class DeadLetterPage(BaseModel):
    items: list[DeadLetter]
    next: int | None = Field(description="for `after` of the next page; null on the last one")


class ReplayOne(Given):
    which: Literal["one"]
    offset: Offset


class ReplayAll(Given):
    which: Literal["all"]
    after: Offset | None = Field(None, description="`next` of the previous call")
    limit: Annotated[int, Field(ge=1, le=10_000), IsNumber] = 1_000


Replay = Annotated[ReplayOne | ReplayAll, Field(discriminator="which")]


class ReplayResult(BaseModel):
    """`next` is not null if there are more: call again with it as `after`. `error`: where it stopped."""

    replayed: int
    next: int | None
    error: ErrorBody | None


# --- schemas


class SubjectSummary(BaseModel):
    subject: str
    schema_id: int
    compatibility_mode: str
    versions: int


class SubjectPage(Page[SubjectSummary]):
    pass


class VersionSummary(BaseModel):
    schema_id: int
    version: int
    fingerprint: str
    description: str
    tags: list[str]
    created_by: str
    created_at_us: int


class VersionPage(BaseModel):
    items: list[VersionSummary]
    next: int | None = Field(description="for `after` of the next page; null on the last one")


class SchemaVersionModel(VersionSummary):
    subject: str
    compatibility_mode: str
    schema_type: str
    definition: str


SchemaTypeName = Literal["bytes", "string", "number", "avro", "json_schema", "protobuf"]
ModeName = Literal["none", "backward", "forward", "full"]
PolicyName = Literal["none", "warn", "enforce"]


class NewSchema(Given):
    schema_type: SchemaTypeName
    definition: str = Field(min_length=1)
    description: str = ""
    created_by: str = ""
    tags: list[str] = []


class RegisteredSchema(BaseModel):
    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str


class SchemaCheck(Given):
    schema_type: SchemaTypeName
    definition: str = Field(min_length=1)
    compatibility_mode: ModeName | None = Field(None, description="instead of the subject's own")


class SchemaCheckResult(BaseModel):
    compatible: bool
    reasons: list[str]


class SubjectMode(Given):
    compatibility_mode: ModeName


class DeletedVersion(BaseModel):
    subject: str
    version: int
    deleted: bool


class TopicSchemaModel(BaseModel):
    topic: str
    subject: str | None
    schema_id: int | None
    validation_policy: PolicyName
    enable_payload_validation: bool


class NewTopicSchema(Given):
    subject: str = Field(min_length=1)
    validation_policy: PolicyName = "warn"
    enable_payload_validation: StrictBool = False
