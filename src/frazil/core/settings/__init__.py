"""Settings: frozen values, validated on construction. Names end with their unit."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from frazil.core.addresses import check_host_and_port, check_origin
from frazil.core.errors import InvalidSettings
from frazil.core.names import TopicName
from frazil.core.settings.broker import BrokerSettings
from frazil.core.settings.cluster import ClusterSettings
from frazil.core.settings.group import SettingsGroup
from frazil.core.settings.lake import (
    CatalogSettings,
    CatalogType,
    MaintenanceSettings,
    ObjectStoreSettings,
    ObjectStoreType,
    ReaderSettings,
    WriterSettings,
)
from frazil.core.settings.metadata import MetadataSettings, MetadataType
from frazil.core.settings.objects import ObjectsSettings
from frazil.core.settings.security import ClientSettings, SecuritySettings, TlsSettings
from frazil.core.settings.sources import add_environment, explained, unwrapped
from frazil.core.settings.telemetry import TelemetrySettings
from frazil.core.settings.topics import TopicRules, TopicTable, topic_rules
from frazil.core.settings.traces import TracesSettings

KIB = 1024
MIB = 1024 * KIB

Positive = Annotated[int, Field(gt=0)]

DEFAULT_FOLDER = Path("frazil-data")

CACHED_MESSAGES_MAX = 10_000_000

_FILE_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}", re.ASCII)


class SyncMode(enum.StrEnum):
    """When a message is acknowledged; `docs/formats/log.md` says what each mode can lose."""

    ALWAYS = "always"
    PERIODIC = "periodic"
    NONE = "none"


class AckLevel(enum.StrEnum):
    """What rows of a topic have reached when they are acknowledged; `docs/guarantees.md` says what each can lose."""

    MEMORY = "memory"
    """The memory of this host: its file, not synced."""
    DISK = "disk"
    """Its disk, as `wal.sync_mode` says."""
    OBJECT = "object"
    """The object store."""


class RetentionSettings(SettingsGroup):
    """How long whole segments are kept. Unset means for ever. With `until_acked`, segments stay at least until every
    subscription has acknowledged their messages; with `age_ms` or `bytes` too, until these limits also allow removal.
    """

    age_ms: Positive | None = None
    bytes: Positive | None = None
    until_acked: bool = False

    @property
    def only_until_acked(self) -> bool:
        """Whether segments are removed as soon as they are acknowledged."""
        return self.until_acked and self.age_ms is None and self.bytes is None


class WalSettings(SettingsGroup):
    """The log: segments, syncing, limits."""

    base_path: Path | None = Field(None, description="folder of the segments; `log` in the data folder if unset")
    dir: Path | None = Field(None, description="alias of `base_path`")
    file_name: str | None = Field(None, description="folder below `dir` that holds the segments; unset, `dir` itself")
    max_file_size: int = Field(64 * MIB, ge=64 * KIB, le=2**31, description="a segment is closed at this size, bytes")
    max_file_age_ms: Positive | None = Field(3_600_000, description="a segment with rows is closed at this age")
    sync_mode: SyncMode = Field(SyncMode.ALWAYS, description="when a message is acknowledged")
    ack: AckLevel = Field(
        AckLevel.DISK, description="ack level of new topics that are created without one: `memory`, `disk` or `object`"
    )
    fsync_interval_ms: Positive = Field(10, description="periodic mode: at most this long between syncs")
    max_batch_bytes: Positive = Field(4 * MIB, description="periodic mode: sync once this much is unsynced")
    cache_capacity: int | None = Field(
        None, ge=0, description="messages of each topic in the replay cache; unset, only `cache_bytes` limits it"
    )
    cache_bytes: int = Field(64 * MIB, ge=0, description="replay cache of all topics together")
    message_bytes_max: Positive = Field(10 * MIB, description="largest message: payload, key and attributes")
    batch_bytes_max: int = Field(64 * MIB, gt=0, le=2**30, description="largest batch of one call")
    queue_bytes_max: Positive = Field(128 * MIB, description="rows of each topic that wait for the disk")
    disk_bytes_max: Positive | None = Field(None, description="budget of the whole data folder")
    open_files_max: Positive = Field(256, description="segments kept open for writing")
    committers: int = Field(4, ge=1, le=64, description="threads that write and sync, shared by all topics")
    retention: RetentionSettings = RetentionSettings()

    @field_validator("file_name")
    @classmethod
    def _is_one_name(cls, value: str | None) -> str | None:
        if value is not None and not _FILE_NAME.fullmatch(value):
            raise ValueError("must be a single name like wal.log: letters, digits, _ . and -, at most 128")
        return value

    @field_validator("cache_capacity")
    @classmethod
    def _counts_messages(cls, value: int | None) -> int | None:
        """Reject a count that no memory holds: it is a number of bytes, as this setting once was."""
        if value is not None and value > CACHED_MESSAGES_MAX:
            raise ValueError(f"counts messages, at most {CACHED_MESSAGES_MAX}; use cache_bytes to bound bytes")
        return value

    @model_validator(mode="after")
    def _has_one_folder(self) -> WalSettings:
        if self.dir is not None and self.base_path is not None and self.dir != self.base_path:
            raise ValueError("dir and base_path are two names of one setting and differ: keep one of them")
        if self.file_name is not None and self.folder is None:
            raise ValueError("file_name is a folder below dir: give dir too")
        return self

    @property
    def folder(self) -> Path | None:
        """The folder that `dir` or `base_path` names; a process owns all of it, whatever `file_name` says."""
        return self.dir or self.base_path

    @model_validator(mode="after")
    def _limits_fit(self) -> WalSettings:
        if self.message_bytes_max > self.batch_bytes_max:
            raise ValueError(f"message_bytes_max must not be above batch_bytes_max = {self.batch_bytes_max}")
        if self.batch_bytes_max > self.queue_bytes_max:
            raise ValueError(f"batch_bytes_max must not be above queue_bytes_max = {self.queue_bytes_max}")
        return self


class HttpSettings(SettingsGroup):
    """The admin door: health, metrics, topics."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6680, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    advertised: str | None = Field(
        None, description="host:port at which other brokers' callers are redirected to it; default: where it listens"
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="accepted host names besides addresses, localhost and the machine's own name; `*`: any"
    )
    cors_origins: tuple[str, ...] = Field(
        (), description="origins whose pages may call, such as `https://admin.example`; each as browsers send it"
    )
    tls: TlsSettings | None = Field(None, description="certificate of this door; unset: `security.tls`")

    @field_validator("advertised")
    @classmethod
    def _is_host_and_port(cls, value: str | None) -> str | None:
        return None if value is None else check_host_and_port(value, 6680)

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            check_origin(origin)
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"\*|[A-Za-z0-9._-]+", name):
                raise ValueError(f"{name!r} is not a name of a host: write it without scheme and port")
        return value


class FlightSettings(SettingsGroup):
    """The Arrow Flight door: for Frazil's own clients, and for movers in other processes and on other hosts."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(6660, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    advertised: str | None = Field(
        None, description="host:port at which other hosts reach it; default: where it listens"
    )
    batch_bytes_max: int = Field(16 * MIB, gt=0, le=2**30, description="largest batch that a client may send")
    batch_rows_max: int = Field(1_000_000, gt=0, lt=2**31, description="largest number of rows in a batch")
    streams_max: int = Field(1_000, gt=0, le=100_000, description="concurrent client streams: publish, read, subscribe")
    buffer_bytes_max: int = Field(256 * MIB, gt=0, description="received but not yet durable, of all clients together")
    query_seconds_max: int = Field(
        600,
        gt=0,
        le=86_400,
        description="time limit of an SQL query, including waits for its caller",
    )
    tls: TlsSettings | None = Field(None, description="certificate of this door; unset: `security.tls`")

    @field_validator("advertised")
    @classmethod
    def _has_host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            check_host_and_port(value.removeprefix("grpc://").removeprefix("grpc+tls://"), 6660)
        return value


class PipelineSettings(SettingsGroup):
    """The mover, whether `frazil serve` starts it or you do."""

    enabled: bool = Field(True, description="whether `frazil serve` starts the mover")
    tasks: int | None = Field(None, ge=1, le=10_000, description="tasks of one job; unset, as many as Spark has cores")
    lease_ms: int = Field(
        10_000, ge=1_000, le=600_000, description="a leading mover without contact for this time is replaced"
    )


class Settings(SettingsGroup):
    data: Path | None = Field(DEFAULT_FOLDER, description="the data folder; null keeps everything in memory")
    wal: WalSettings = WalSettings()
    http: HttpSettings = HttpSettings()
    flight: FlightSettings = FlightSettings()
    broker: BrokerSettings = BrokerSettings()
    pipeline: PipelineSettings = PipelineSettings()
    catalog: CatalogSettings = CatalogSettings()
    object_store: ObjectStoreSettings = ObjectStoreSettings()
    objects: ObjectsSettings = ObjectsSettings()
    writer: WriterSettings = WriterSettings()
    reader: ReaderSettings = ReaderSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    metadata: MetadataSettings = MetadataSettings()
    cluster: ClusterSettings = ClusterSettings()
    traces: TracesSettings = TracesSettings()
    security: SecuritySettings = SecuritySettings()
    client: ClientSettings = ClientSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    topics: TopicTable = Field({}, description="settings of single topics, by name or pattern; see below")

    @model_validator(mode="after")
    def _is_in_memory_or_on_disk(self) -> Settings:
        if self.data is None and self.wal.folder is not None:
            raise ValueError("data: null keeps the log in memory, and wal.dir or wal.base_path gives it a folder")
        return self

    @model_validator(mode="after")
    def _acks_have_a_store(self) -> Settings:
        if self.wal.ack is AckLevel.OBJECT and not self.objects.enabled:
            raise ValueError("wal.ack: object needs objects.enabled: true")
        return self

    @model_validator(mode="after")
    def _cluster_has_what_it_needs(self) -> Settings:
        if self.cluster.enabled:
            if self.metadata.type is not MetadataType.ETCD:
                raise ValueError("cluster.enabled: brokers share their topics by metadata.type: etcd")
            if not self.objects.enabled:
                raise ValueError("cluster.enabled: topics move through the object store; set objects.enabled: true")
            if not self.broker.enabled:
                raise ValueError("cluster.enabled: a member of a cluster is a broker; set broker.enabled: true")
        return self

    @classmethod
    def of_folder(cls, where: str | os.PathLike[str] | None) -> Settings:
        """Return the defaults for a data folder; None keeps everything in memory."""
        return cls(data=None if where is None else Path(where))

    @property
    def log_folder(self) -> Path:
        """The folder of the segments: `{log_folder}/{namespace}/{topic}/{offset:020d}.wal`."""
        folder = self.wal.folder or (self.data or Path("/memory")) / "log"
        return folder / (self.wal.file_name or "")

    @property
    def embedded_catalog(self) -> Path | None:
        """The SQLite file of the embedded catalog, which the mover creates; None if the catalog is elsewhere."""
        if self.catalog.type is not CatalogType.SQL or self.catalog.uri is not None:
            return None
        return (self.data or Path("frazil-data")).absolute() / "catalog.db"

    def of_topic(self, topic: TopicName) -> TopicRules:
        """Return the settings of one topic: its entry in `topics`, and `writer` for the rest."""
        return topic_rules(self.topics, self.writer, topic)

    def writers(self) -> list[WriterSettings]:
        """Return every variant of the writer settings that topics may have."""
        return [self.writer, *(topic.writer_over(self.writer) for topic in self.topics.values())]


def check_lake_folder(settings: Settings) -> None:
    """Raise `InvalidSettings` for a warehouse folder whose name would be misread in a file URI."""
    store, data = settings.object_store, settings.data
    is_local = store.type is ObjectStoreType.LOCAL
    folders: dict[str, Path | None] = {"object_store.path": store.path if is_local else None}
    if settings.embedded_catalog is not None or (
        is_local and store.path is None and settings.catalog.warehouse is None
    ):
        folders["data"] = None if data is None else data.absolute()
    for setting, folder in folders.items():
        odd = next((sign for sign in "#?%" if folder is not None and sign in str(folder)), None)
        if odd is not None:
            raise InvalidSettings(
                f"{setting}: {folder} has a {odd} in it, which can't stand in the addresses of tables; use a folder"
                " without # ? % in its path, or set catalog.uri and object_store.path to places without",
                field=setting,
            )


def make_settings(
    values: Mapping[str, Any], source: str = "settings", environment: Mapping[str, str] | None = None
) -> Settings:
    """Validate settings; raises `InvalidSettings` that names each wrong key and the problem."""
    given = add_environment(unwrapped(values, source), environment or {}, Settings)
    try:
        return Settings.model_validate(given.values)
    except ValidationError as error:
        raise InvalidSettings(explained(error, given, Settings), source=source) from None


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Load a YAML file; environment variables override it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidSettings(f"cannot read {path}: {reason}", source=str(path)) from None
    import yaml  # skipped without a file: the import takes as long as all checks here

    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise InvalidSettings(f"{path} is not valid YAML{where}", source=str(path)) from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise InvalidSettings(f"{path} must hold a mapping of settings", source=str(path))
    return make_settings(values, str(path), environment)


def settings_of(where: str | os.PathLike[str] | Settings | Mapping[str, Any]) -> Settings:
    """Accept settings in any form: an object, a mapping, a YAML file, or a data folder.

    A name that ends in `.yaml` or `.yml` is a settings file, unless a folder of that name exists.
    """
    if isinstance(where, Settings):
        return where
    if isinstance(where, Mapping):
        return make_settings(where)
    if not isinstance(where, str | os.PathLike):
        raise InvalidSettings(
            f"settings: a data folder, a YAML file, a mapping or a Settings is wanted, not {type(where).__name__}"
        )
    path = Path(where)
    if path.is_dir():
        return Settings.of_folder(path)
    if path.suffix in (".yaml", ".yml"):
        return load_settings(path)
    if path.exists():
        raise InvalidSettings(
            f"{path} is a file: give a data folder, or a settings file whose name ends in .yaml or .yml",
            source=str(path),
        )
    return Settings.of_folder(path)


def resolve_settings(data: Path | None = None, config: Path | None = None) -> Settings:
    """Resolve command-line settings. Precedence for each setting: `data`, the environment, the file, the default.

    The file is `config` or FRAZIL_CONFIG; `data` overrides only the file's own `data`.
    """
    if config is None and os.environ.get("FRAZIL_CONFIG"):
        config = Path(os.environ["FRAZIL_CONFIG"])
    settings = load_settings(config, os.environ) if config else make_settings({}, "environment", os.environ)
    if data is None and os.environ.get("FRAZIL_DATA"):
        data = Path(os.environ["FRAZIL_DATA"])
    return settings if data is None else settings.model_copy(update={"data": data})
