"""Table maintenance: compaction, expiry of snapshots, removal of orphan files, by Iceberg's own Spark procedures.

It runs concurrently with the mover on the same tables, without a lock: of two conflicting commits, one is retried on
top of the other. Checks before each step protect the rows: a table that was rolled back is not touched, recent files
are never deleted, and no orphans are removed where files of others may be.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import SparkSession

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, InvalidInput, InvalidSettings, LakeUnavailable, SparkUnavailable, TryLater
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.lake.catalogs.error_text import LENGTH_MAX, masked, reason
from frazil.lake.catalogs.opening import known_properties
from frazil.lake.catalogs.spark import check_maintainable, packages, spark_options
from frazil.lake.catalogs.table_names import spark_name
from frazil.lake.maintenance.table_inspection import HOUR_MS, TableInspector
from frazil.lake.tables.schema import TableName
from frazil.pipeline.spark.requirements import missing_part
from frazil.pipeline.spark.session import open_session, spark_place

EXPIRY_MS_MIN = HOUR_MS
ORPHAN_MS_MIN = 24 * HOUR_MS
"""Iceberg's procedure refuses less as well: files that a task is about to commit look like orphans."""

SHUFFLES = "8"
"""Partitions for Iceberg's comparison of file lists; Spark's default of 200 takes longer to start than to run."""

NOT_SHOWN = "(?i)secret|password|token|credential|access[.-]?key|account[.-]?key"
_CONFLICTS = ("CommitFailedException", "ValidationException", "SQLITE_BUSY")


@dataclass(frozen=True, slots=True)
class Compacted:
    table: str
    files_before: int
    files_after: int
    bytes: int
    manifests_before: int
    manifests_after: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Expired:
    table: str
    snapshots: int
    data_files: int
    other_files: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Orphans:
    table: str
    files: tuple[str, ...]
    removed: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_expiry_age(age_ms: int | None, *, force: bool) -> None:
    """Readers of other engines may still use snapshots of the last hour."""
    if age_ms is not None and age_ms < EXPIRY_MS_MIN and not force:
        raise InvalidInput("--older-than: less than 1h would remove files under running queries; give --force to do it")


def orphan_before_ms(settings: Settings, clock: Clock, age_ms: int | None) -> int:
    """Files older than this may be removed."""
    if age_ms is not None and age_ms < ORPHAN_MS_MIN:
        raise InvalidInput("--older-than: at least 24h: younger files may be about to be committed")
    age_ms = settings.maintenance.orphan_age_hours * HOUR_MS if age_ms is None else age_ms
    return clock.now_us() // 1_000 - age_ms


class Maintenance:
    def __init__(self, settings: Settings, session: SparkSession) -> None:
        self._settings = settings
        self._session = session
        self._inspector = TableInspector(settings)
        self._known = known_properties(settings)

    def compact(self, name: TableName) -> Compacted:
        """Merge small files, with their rows in offset order, and then the manifests."""
        self._inspector.check_tokens(name)
        rules = self._settings.maintenance
        order = self._inspector.order(name)
        how = f", strategy => 'sort', sort_order => '{order}'" if order else ""
        if self._inspector.is_sorted(name):
            how = ", strategy => 'sort'"  # as the table's own order says
        options = f"'target-file-size-bytes', '{rules.target_file_bytes}', 'min-input-files', '{rules.files_min}'"
        files = self._call(name, "rewrite_data_files", f"{how}, options => map({options})")[0]
        return Compacted(
            str(name),
            int(files["rewritten_data_files_count"]),
            int(files["added_data_files_count"]),
            int(files["rewritten_bytes_count"]),
            *self._compact_manifests(name),
        )

    def _compact_manifests(self, name: TableName) -> tuple[int, int]:
        """Return the counts before and after. The mover merges manifests too; if it was faster, there is less to do."""
        try:
            counts = self._call(name, "rewrite_manifests")[0]
        except TryLater:
            return 0, 0
        return int(counts["rewritten_manifests_count"]), int(counts["added_manifests_count"])

    def expire(self, name: TableName, before_ms: int, keep: int) -> Expired:
        """Expire old snapshots, and delete the files that only they needed. The current one always stays."""
        self._inspector.check_tokens(name)
        self._inspector.check_may_delete(name)
        snapshots = len(self._inspector.expiring(name, before_ms, keep))
        counts = self._call(
            name, "expire_snapshots", f", older_than => {_timestamp(before_ms)}, retain_last => {max(1, keep)}"
        )[0]
        data = int(counts["deleted_data_files_count"])
        return Expired(str(name), snapshots, data, sum(int(count or 0) for count in counts.values()) - data)

    def orphans(self, name: TableName, before_ms: int, *, dry_run: bool) -> Orphans:
        """Remove files below the table's location that no snapshot references. Iceberg lists them;
        see `orphan_files`."""
        self._inspector.check_may_delete(name)
        self._inspector.check_alone(name)
        listing = ", prefix_listing => true" if self._settings.object_store.type is ObjectStoreType.S3 else ""
        arguments = f", older_than => {_timestamp(before_ms)}, dry_run => true{listing}"
        found = self._call(name, "remove_orphan_files", arguments)
        listed = sorted(str(row["orphan_file_location"]) for row in found)
        gone = listed if dry_run else self._inspector.remove_orphans(name, listed)
        return Orphans(str(name), tuple(gone), not dry_run)

    def _call(self, name: TableName, procedure: str, arguments: str = "") -> list[dict[str, Any]]:
        table = spark_name(name, self._settings.catalog.type)
        statement = f"CALL `{self._settings.catalog.name}`.system.{procedure}(table => '{table}'{arguments})"
        try:
            return [row.asDict() for row in self._session.sql(statement).collect()]
        except Exception as error:
            raise self._told(name, procedure, error) from error

    def _told(self, name: TableName, procedure: str, error: Exception) -> FrazilError:
        said = str(error)
        lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason given"]
        why = masked(next((line for line in lines if "Exception: " in line), lines[0]).lstrip(": "), self._known)
        why = why[:LENGTH_MAX]
        if any(conflict in said for conflict in _CONFLICTS):
            return TryLater(f"{name}: {procedure} met another's commit and changed nothing ({why}); run it again")
        return LakeUnavailable(
            "catalog", f"{name}: {procedure} failed ({why})", "see `frazil doctor`, then run it again"
        )


@contextlib.contextmanager
def open_maintenance(settings: Settings, master: str | None = None) -> Iterator[Maintenance]:
    """Open Spark with Iceberg's runtime, in this process or on a master, for the duration of the maintenance."""
    check_maintainable(settings)
    missing = missing_part()
    if missing is not None:
        raise SparkUnavailable(missing)
    _lend_keys_to_glue(settings)
    options = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": SHUFFLES,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.redaction.regex": NOT_SHOWN,
        **_jars(settings),
    }
    try:
        session = open_session(spark_place(master or "local[*]"), options)
        for name, value in spark_options(settings).items():
            session.conf.set(name, value)  # not at the start: start options appear on the JVM's command line
    except Exception as error:
        raise SparkUnavailable(reason(error, known_properties(settings))) from error
    try:
        yield Maintenance(settings, session)
    finally:
        with contextlib.suppress(Exception):  # a dead session can't be stopped, and need not be
            session.stop()


def _jars(settings: Settings) -> dict[str, str]:
    folder = settings.maintenance.jars
    if folder is None:
        return {"spark.jars.packages": ",".join(packages(settings))}
    found = sorted(str(jar.absolute()) for jar in folder.glob("*.jar"))
    if not any("iceberg-spark-runtime" in jar for jar in found):
        raise InvalidSettings(
            f"maintenance.jars: {folder} holds no iceberg-spark-runtime; put there {', '.join(packages(settings))}, "
            "or unset it"
        )
    return {"spark.jars": ",".join(found), "spark.driver.extraClassPath": os.pathsep.join(found)}


def _lend_keys_to_glue(settings: Settings) -> None:
    """Iceberg's Glue client takes keys only from the sources of AWS's own library."""
    store = settings.object_store
    if settings.catalog.type is not CatalogType.GLUE:
        return
    given = {
        "AWS_ACCESS_KEY_ID": store.access_key_id,
        "AWS_SECRET_ACCESS_KEY": store.secret_access_key,
        "AWS_SESSION_TOKEN": store.session_token,
    }
    for name, value in given.items():
        if value is not None:
            os.environ.setdefault(name, value.get_secret_value())


def _timestamp(time_ms: int) -> str:
    at = datetime.fromtimestamp(time_ms / 1_000, timezone.utc)
    return f"TIMESTAMP '{at.strftime('%Y-%m-%d %H:%M:%S.%f')}Z'"
