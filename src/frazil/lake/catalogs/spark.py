"""The catalog settings translated for Iceberg's Java library, so that Spark opens the same tables.

PyIceberg and Java use the same names for most properties; this module maps the others.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from frazil.core.errors import InvalidSettings
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.lake.catalogs.opening import LOCK_WAIT_S, catalog_properties

ICEBERG = "1.12.0"
RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"
AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}"
SQLITE = "org.xerial:sqlite-jdbc:3.50.3.0"
POSTGRESQL = "org.postgresql:postgresql:42.7.7"
S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"

_ONLY_OF_PYICEBERG = (
    "type",
    "pool_pre_ping",
    "py-io-impl",
    "s3.connect-timeout",
    "s3.request-timeout",
    "s3.force-virtual-addressing",
)


def check_maintainable(settings: Settings) -> None:
    """Refuse settings with which Spark cannot open the catalog, and name the setting."""
    catalog, store = settings.catalog, settings.object_store
    if catalog.type is CatalogType.MEMORY or store.type is ObjectStoreType.MEMORY:
        raise InvalidSettings("catalog.type: tables in memory end with their process, and Spark can't open them")
    if catalog.type is CatalogType.NAMED:
        raise InvalidSettings(
            "catalog.type: a named catalog is known to PyIceberg alone; write its type and address under `catalog`"
        )
    if store.type in (ObjectStoreType.GCS, ObjectStoreType.AZURE):
        raise InvalidSettings(
            f"object_store.type: tables on {store.type} can't be maintained from here yet; use an engine that has"
            " Iceberg's procedures"
        )
    if catalog.type is CatalogType.SQL and _scheme(settings) not in ("sqlite", "postgresql"):
        raise InvalidSettings("catalog.uri: Spark opens catalogs in SQLite and PostgreSQL; this is neither")


def packages(settings: Settings) -> list[str]:
    """Return the Maven packages that Spark needs."""
    found = [RUNTIME]
    if settings.catalog.type is CatalogType.SQL:
        found.append(SQLITE if _scheme(settings) == "sqlite" else POSTGRESQL)
    if settings.catalog.type in (CatalogType.GLUE, CatalogType.REST) or _is_s3(settings):
        found.append(AWS)
    return found


def spark_options(settings: Settings) -> dict[str, str]:
    """Return Spark's catalog options. They contain secrets: set them only on a running session."""
    check_maintainable(settings)
    known = catalog_properties(settings)
    options = {name: value for name, value in known.items() if name not in _ONLY_OF_PYICEBERG}
    options |= {"cache-enabled": "false"}
    if _is_s3(settings):
        options |= {"io-impl": S3_FILES, "s3.path-style-access": str(settings.object_store.path_style).lower()}
    if (region := options.pop("s3.region", None)) is not None:
        options["client.region"] = region
    if settings.catalog.type is CatalogType.SQL:
        options |= _jdbc(known["uri"])
    else:
        options["type"] = settings.catalog.type.value
    if settings.catalog.type is CatalogType.REST and "warehouse" in options:
        options["warehouse"] = settings.catalog.warehouse or settings.object_store.bucket or options["warehouse"]
    prefix = f"spark.sql.catalog.{settings.catalog.name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{key}": options[key] for key in options}}


def _jdbc(uri: str) -> dict[str, str]:
    """Separate the password from the address, because addresses appear in messages."""
    parts = urlsplit(uri)
    common = {"type": "jdbc", "jdbc.schema-version": "V1"}
    if parts.scheme.startswith("sqlite"):
        path = unquote(parts.path)[1:]
        return {**common, "uri": f"jdbc:sqlite:{path}", "jdbc.busy_timeout": str(LOCK_WAIT_S * 1_000)}
    place = f"{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
    login = {"jdbc.user": unquote(parts.username or ""), "jdbc.password": unquote(parts.password or "")}
    return {**common, "uri": f"jdbc:postgresql://{place}", **{name: each for name, each in login.items() if each}}


def _scheme(settings: Settings) -> str:
    return urlsplit(catalog_properties(settings)["uri"]).scheme.split("+")[0]


def _is_s3(settings: Settings) -> bool:
    return settings.object_store.type is ObjectStoreType.S3
