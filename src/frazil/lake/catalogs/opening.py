"""Open the catalog of the settings, with a timeout on every wait."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NotInstalledError
from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool

from frazil.core.disk.modes import make_private_file, make_private_folder
from frazil.core.errors import LakeUnavailable
from frazil.core.extras import install_hint, lake_unavailable
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.lake.catalogs.embedded import EmbeddedCatalog
from frazil.lake.catalogs.error_text import reason
from frazil.lake.catalogs.postgres import PostgresCatalog, is_postgres
from frazil.lake.catalogs.rest import CONNECT_S_MAX, improve
from frazil.lake.catalogs.sql import SharedSqlCatalog
from frazil.lake.files.manifests import read_whole
from frazil.lake.files.object_store import given, plain, secret, store_properties, store_root
from frazil.lake.pyiceberg_private import configured_properties

LOCK_WAIT_S = 60

read_whole()


def catalog_properties(settings: Settings) -> dict[str, str]:
    """Return PyIceberg's properties. They contain secrets: send them to tasks, never to a log."""
    catalog, store = settings.catalog, settings.object_store
    properties = store_properties(store)
    if catalog.type is not CatalogType.NAMED:
        properties["type"] = "in-memory" if catalog.type is CatalogType.MEMORY else catalog.type.value
    properties.update(_address(settings))
    warehouse = catalog.warehouse or _warehouse(settings)
    if warehouse is not None:
        properties["warehouse"] = warehouse
    properties.update(given({"token": secret(catalog.token), "credential": secret(catalog.credential)}))
    return {**properties, **plain(catalog.properties)}


def open_catalog(settings: Settings) -> Catalog:
    """Open the catalog, or raise `LakeUnavailable` with the setting to check."""
    if settings.object_store.type is ObjectStoreType.MEMORY and settings.catalog.type is not CatalogType.MEMORY:
        raise LakeUnavailable(
            "object_store.type",
            "files in memory end with this process, and the catalog would still name them",
            "set catalog.type to memory as well, or use a store that stays: local, s3, gcs or azure",
        )
    try:
        _make_closed(settings)
        catalog = _load(settings)
    except (ModuleNotFoundError, NotInstalledError) as error:
        missing = error.__cause__ if isinstance(error, NotInstalledError) else error  # the cause names the module
        raise lake_unavailable(install_hint(getattr(missing, "name", None))) from None
    except Exception as error:
        raise LakeUnavailable("catalog", reason(error, known_properties(settings))) from error
    if isinstance(catalog, InMemoryCatalog):
        _share_between_threads(catalog)
    elif isinstance(catalog, RestCatalog):
        improve(catalog)
    return catalog


def _load(settings: Settings) -> Catalog:
    known = known_properties(settings)
    if known.get("type") != "sql":
        return load_catalog(settings.catalog.name, **catalog_properties(settings))
    if is_postgres(str(known.get("uri", ""))):
        return PostgresCatalog(settings.catalog.name, **known)
    if settings.embedded_catalog is not None:
        embedded = EmbeddedCatalog(settings.catalog.name, **known)
        embedded.path = settings.embedded_catalog
        return embedded
    return SharedSqlCatalog(settings.catalog.name, **known)


def _make_closed(settings: Settings) -> None:
    """Create the catalog file and the warehouse folder before PyIceberg opens them: it leaves modes to the umask."""
    if settings.embedded_catalog is not None:
        make_private_folder(settings.embedded_catalog.parent)
        make_private_file(settings.embedded_catalog)
    warehouse = (settings.catalog.warehouse or _warehouse(settings) or "").removeprefix("file://")
    if warehouse.startswith("/") and Path(warehouse).parent.is_dir():
        try:
            make_private_folder(Path(warehouse))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # a user without write access only reads
                raise


def catalog_exists(settings: Settings) -> bool:
    """Whether the embedded catalog exists. Opening would create the file, which a read-only process must not do."""
    return settings.embedded_catalog is None or settings.embedded_catalog.exists()


def known_properties(settings: Settings) -> dict[str, Any]:
    """Return the properties of the settings and of a .pyiceberg.yaml or PYICEBERG_*: all that a
    message might repeat.
    """
    return {**configured_properties(settings.catalog.name), **catalog_properties(settings)}


def _address(settings: Settings) -> dict[str, str]:
    """Return the catalog's address. Glue has its own names for it, and uses the store's keys by default."""
    catalog, store = settings.catalog, settings.object_store
    uri = secret(catalog.uri)
    if catalog.type is CatalogType.GLUE:
        return given(
            {
                "glue.endpoint": uri,
                "glue.region": store.region,
                "glue.access-key-id": secret(store.access_key_id),
                "glue.secret-access-key": secret(store.secret_access_key),
                "glue.session-token": secret(store.session_token),
            }
        )
    if catalog.type is CatalogType.SQL:
        return {"uri": _patient(uri or f"sqlite:///{settings.embedded_catalog}"), "pool_pre_ping": "true"}
    return given({"uri": uri})


def _patient(uri: str) -> str:
    """Return a database URL that waits for locks, with a connection timeout."""
    parts = urlsplit(uri)
    name, limit_s = {
        "sqlite": ("timeout", LOCK_WAIT_S),
        "postgresql": ("connect_timeout", CONNECT_S_MAX),
    }.get(parts.scheme.split("+")[0], ("", 0))
    if not name or name in parse_qs(parts.query):
        return uri
    return f"{uri}{'&' if parts.query else '?'}{name}={limit_s}"


def _warehouse(settings: Settings) -> str | None:
    """Return the location of the tables; None if the catalog decides it itself."""
    catalog, store = settings.catalog, settings.object_store
    if store.type is ObjectStoreType.LOCAL:
        if catalog.type in (CatalogType.REST, CatalogType.NAMED) and store.path is None:
            return None
        return f"file://{(store.path or _folder(settings) / 'warehouse').absolute()}"
    return f"{store_root(store)}/{(store.prefix or '').strip('/')}".rstrip("/")


def _share_between_threads(catalog: InMemoryCatalog) -> None:
    """Share one connection: SQLite in memory otherwise gives each thread its own database."""
    catalog.engine.dispose()
    catalog.engine = create_engine(
        "sqlite:///:memory:",
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        connect_args={"check_same_thread": False},
    )
    catalog.create_tables()


def _folder(settings: Settings) -> Path:
    return (settings.data or Path("frazil-data")).absolute()
