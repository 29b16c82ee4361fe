"""Opening the catalog that the settings name, with a limit on everything that waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr
from pyiceberg.catalog import _ENV_CONFIG, Catalog, load_catalog
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.catalog.rest import RestCatalog
from sqlalchemy import create_engine
from sqlalchemy.pool import QueuePool

from frazil.core.errors import LakeUnavailable
from frazil.core.lake_settings import CatalogType, ObjectStoreSettings, ObjectStoreType
from frazil.core.settings import Settings
from frazil.lake.reasons import reason
from frazil.lake.rest import CONNECT_S_MAX, improve

LOCK_WAIT_S = 60
STORE_CONNECT_S_MAX = 5
STORE_ANSWER_S_MAX = 20
"""The AWS library gives up after 1 and 3 seconds, and tries three times: too hasty for a store that is only slow."""

_SCHEMES = {ObjectStoreType.S3: "s3", ObjectStoreType.GCS: "gs", ObjectStoreType.AZURE: "abfss"}


def catalog_properties(settings: Settings) -> dict[str, str]:
    """What PyIceberg is told. It holds secrets: it goes to tasks, never to a log."""
    catalog, store = settings.catalog, settings.object_store
    properties = {**_store_properties(store), **_plain(store.properties)}
    if catalog.type is not CatalogType.NAMED:
        properties["type"] = "in-memory" if catalog.type is CatalogType.MEMORY else catalog.type.value
    properties.update(_address(settings))
    warehouse = catalog.warehouse or _warehouse(settings)
    if warehouse is not None:
        properties["warehouse"] = warehouse
    properties.update(_given({"token": _secret(catalog.token), "credential": _secret(catalog.credential)}))
    return {**properties, **_plain(catalog.properties)}


def open_catalog(settings: Settings) -> Catalog:
    """The catalog, or `LakeUnavailable` with the setting to look at."""
    properties = catalog_properties(settings)
    if settings.embedded_catalog is not None:
        settings.embedded_catalog.parent.mkdir(parents=True, exist_ok=True)
    try:
        catalog = load_catalog(settings.catalog.name, **properties)
    except Exception as error:
        raise LakeUnavailable("catalog", reason(error, known_properties(settings))) from error
    if isinstance(catalog, InMemoryCatalog):
        _share_between_threads(catalog)
    elif isinstance(catalog, RestCatalog):
        improve(catalog)
    return catalog


def is_there(settings: Settings) -> bool:
    """The embedded catalog is a file that opening would make: whoever only looks must not."""
    return settings.embedded_catalog is None or settings.embedded_catalog.exists()


def known_properties(settings: Settings) -> dict[str, Any]:
    """Ours and those of a .pyiceberg.yaml or PYICEBERG_*: all that a message might repeat."""
    return {**(_ENV_CONFIG.get_catalog_config(settings.catalog.name) or {}), **catalog_properties(settings)}


def _address(settings: Settings) -> dict[str, str]:
    """Where the catalog is. Glue has its own names for it, and takes the keys of the store unless told otherwise."""
    catalog, store = settings.catalog, settings.object_store
    uri = _secret(catalog.uri)
    if catalog.type is CatalogType.GLUE:
        return _given(
            {
                "glue.endpoint": uri,
                "glue.region": store.region,
                "glue.access-key-id": _secret(store.access_key_id),
                "glue.secret-access-key": _secret(store.secret_access_key),
                "glue.session-token": _secret(store.session_token),
            }
        )
    if catalog.type is CatalogType.SQL:
        return {"uri": _patient(uri or f"sqlite:///{settings.embedded_catalog}"), "pool_pre_ping": "true"}
    return _given({"uri": uri})


def _patient(uri: str) -> str:
    """A database URL that waits for another's lock, but not for ever for a server that is not there."""
    parts = urlsplit(uri)
    name, limit_s = {
        "sqlite": ("timeout", LOCK_WAIT_S),
        "postgresql": ("connect_timeout", CONNECT_S_MAX),
    }.get(parts.scheme.split("+")[0], ("", 0))
    if not name or name in parse_qs(parts.query):
        return uri
    return f"{uri}{'&' if parts.query else '?'}{name}={limit_s}"


def _store_properties(store: ObjectStoreSettings) -> dict[str, str]:
    """The same few settings in the words of each provider."""
    key, secret, token = (_secret(each) for each in (store.access_key_id, store.secret_access_key, store.session_token))
    if store.type is ObjectStoreType.S3:
        return _given(
            {
                "s3.endpoint": store.endpoint,
                "s3.region": store.region,
                "s3.access-key-id": key,
                "s3.secret-access-key": secret,
                "s3.session-token": token,
                "s3.force-virtual-addressing": "false" if store.path_style else "true",
                "s3.connect-timeout": str(STORE_CONNECT_S_MAX),
                "s3.request-timeout": str(STORE_ANSWER_S_MAX),
            }
        )
    if store.type is ObjectStoreType.GCS:
        return _given({"gcs.service.host": store.endpoint, "gcs.oauth2.token": token})
    if store.type is ObjectStoreType.AZURE:
        return _given(
            {
                "adls.account-host": store.endpoint,
                "adls.account-name": key,
                "adls.account-key": secret,
                "adls.sas-token": token,
            }
        )
    return {}


def _warehouse(settings: Settings) -> str | None:
    """The place of the tables; a catalog that knows its own and was told nothing else decides itself."""
    catalog, store = settings.catalog, settings.object_store
    if store.type is ObjectStoreType.LOCAL:
        if catalog.type in (CatalogType.REST, CatalogType.NAMED) and store.path is None:
            return None
        return f"file://{(store.path or _folder(settings) / 'warehouse').absolute()}"
    if store.type is ObjectStoreType.MEMORY:
        return "memory://frazil"
    return f"{_SCHEMES[store.type]}://{store.bucket}/{(store.prefix or '').strip('/')}".rstrip("/")


def _share_between_threads(catalog: InMemoryCatalog) -> None:
    """SQLite in memory gives each thread a database of its own; here all take turns on one connection."""
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


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _plain(values: dict[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in values.items()}


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
