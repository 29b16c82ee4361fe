"""Settings of the lake: where tables are, when rows are moved, how they are read."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from frazil.core.settings.group import SettingsGroup

MIB = 1024 * 1024

AZURE_ACCOUNT = "adls.account-name"
"""The property that may name the account of an Azure store, instead of `access_key_id`."""

Positive = Annotated[int, Field(gt=0)]


class CatalogType(enum.StrEnum):
    SQL = "sql"
    REST = "rest"
    GLUE = "glue"
    MEMORY = "memory"
    NAMED = "named"


class CatalogSettings(SettingsGroup):
    """The Iceberg catalog. Unset, an SQLite file in the data folder."""

    type: CatalogType = Field(CatalogType.SQL, description="sql, rest, glue, memory, or named")
    name: str = Field("frazil", description="name of the catalog; with type named, a catalog in .pyiceberg.yaml")
    uri: SecretStr | None = Field(None, description="address of the catalog; for sql a database URL with its password")
    warehouse: str | None = Field(None, description="location of the tables; for rest the server's name of it")
    token: SecretStr | None = Field(None, description="bearer token of a rest catalog")
    credential: SecretStr | None = Field(None, description="client id and secret of a rest catalog, as id:secret")
    properties: dict[str, SecretStr] = Field({}, description="other PyIceberg properties")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> CatalogSettings:
        if self.type is CatalogType.REST and self.uri is None:
            raise ValueError("uri is needed for a catalog of type rest")
        return self


class ObjectStoreType(enum.StrEnum):
    LOCAL = "local"
    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"
    MEMORY = "memory"


class ObjectStoreSettings(SettingsGroup):
    """Where data files are. Unset, the folder `warehouse` in the data folder."""

    type: ObjectStoreType = Field(ObjectStoreType.LOCAL, description="local, s3, gcs, azure or memory")
    path: Path | None = Field(None, description="folder of a local store")
    bucket: str | None = Field(None, description="bucket or container")
    prefix: str | None = Field(None, description="path within the bucket")
    region: str | None = Field(None, description="region of the bucket")
    endpoint: str | None = Field(None, description="address of a server other than the provider's own")
    path_style: bool = Field(True, description="address buckets by path, as most S3-compatible servers need")
    access_key_id: SecretStr | None = Field(
        None, description="access key, or Azure account; default: the provider's usual sources"
    )
    secret_access_key: SecretStr | None = Field(None, description="its secret, or the key of the Azure account")
    session_token: SecretStr | None = Field(None, description="token of temporary credentials; gcs: OAuth, azure: SAS")
    properties: dict[str, SecretStr] = Field({}, description="other PyIceberg properties")

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> ObjectStoreSettings:
        if self.type not in (ObjectStoreType.LOCAL, ObjectStoreType.MEMORY) and not self.bucket:
            raise ValueError(f"bucket is needed for an object store of type {self.type}")
        if self.type is ObjectStoreType.AZURE:
            self._check_azure()
        return self

    def _check_azure(self) -> None:
        """Require the account name, which locates containers, and at most one kind of credential."""
        account = self.access_key_id or self.properties.get(AZURE_ACCOUNT)
        if account is None or not account.get_secret_value():
            raise ValueError("access_key_id is needed for an object store of type azure: the name of the account")
        if self.secret_access_key and self.session_token:
            raise ValueError("secret_access_key and session_token exclude each other for an object store of type azure")


class WriterSettings(SettingsGroup):
    """When a topic's rows are moved to its table: whichever comes first."""

    batch_size: Positive = Field(100_000, description="move after this many rows wait")
    flush_interval_ms: Positive = Field(5_000, description="move when the oldest waiting row has this age")
    max_memory_bytes: int = Field(
        128 * MIB, ge=4 * MIB, description="move after this many bytes wait; also the memory of one task"
    )


class ReaderSettings(SettingsGroup):
    """How tables are read."""

    poll_interval_ms: Positive = Field(1_000, description="how often a table is polled for a new snapshot")
    max_concurrent_reads: Positive = Field(10, description="files read concurrently")
    prefetch_size: Positive = Field(5, description="files prefetched")


class MaintenanceSettings(SettingsGroup):
    """How tables are kept: how often, the size of files, how long snapshots and stray files stay."""

    interval_seconds: int = Field(
        3_600, ge=0, description="how often the mover runs table maintenance; `0` turns it off"
    )
    jars: Path | None = Field(None, description="folder with Iceberg's jars for Spark; default: downloaded through Ivy")
    target_file_bytes: int = Field(256 * MIB, ge=MIB, description="target file size of compaction")
    files_min: int = Field(5, ge=2, description="minimum number of small files in a partition for compaction")
    snapshot_age_hours: int = Field(120, ge=1, description="younger snapshots are kept: readers may use them")
    snapshots_min: int = Field(10, ge=1, description="this many snapshots are kept, whatever their age")
    snapshots_max: int = Field(
        100, ge=2, description="beyond this number the mover's commits remove the oldest, whatever their age"
    )
    orphan_age_hours: int = Field(72, ge=24, description="younger files are kept: a commit may be pending")

    @model_validator(mode="after")
    def _keeps_no_more_than_it_may(self) -> MaintenanceSettings:
        if self.snapshots_min > self.snapshots_max:
            raise ValueError(f"snapshots_min is {self.snapshots_min}, more than snapshots_max, {self.snapshots_max}")
        return self
