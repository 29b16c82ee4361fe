"""Open the object store that the settings name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from frazil.core.errors import InvalidSettings
from frazil.core.extras import needs
from frazil.core.settings import Settings
from frazil.core.settings.lake import AZURE_ACCOUNT, ObjectStoreSettings, ObjectStoreType
from frazil.objects.remote import ObstoreObjects
from frazil.objects.store import ObjectStore

RETRIES_MAX = 2
"""Further attempts of the library within one call; callers retry with back-off."""

SSE_TYPE, SSE_KEY = "s3.sse.type", "s3.sse.key"
"""Properties of Iceberg's own file access, by which Spark encrypts too."""
_SSE = {"s3": "AES256", "kms": "aws:kms", "dsse-kms": "aws:kms:dsse"}

_memory: dict[str, Any] = {}
"""Stores in memory by location: those of one process share their objects."""


def open_objects(settings: Settings) -> ObjectStore:
    """Open the object tier's store below its prefix. No request is sent yet."""
    objects = settings.objects
    store = objects.store or settings.object_store
    prefix = "/".join(part for part in (store.prefix, objects.prefix) if part)
    folder = _folder(settings, store)
    with needs(lambda hint: InvalidSettings(f"objects.enabled: {hint}", field="objects.enabled")):
        opened = _opened(store, folder, objects.timeout_ms)
    return ObstoreObjects(opened, prefix.strip("/"), sync_folder=folder)


def _folder(settings: Settings, store: ObjectStoreSettings) -> Path | None:
    if store.type is not ObjectStoreType.LOCAL:
        return None
    return (store.path or (settings.data or Path("frazil-data")) / "objects").absolute()


def _opened(store: ObjectStoreSettings, folder: Path | None, timeout_ms: int) -> Any:
    import obstore.store

    if store.type is ObjectStoreType.MEMORY:
        return _memory.setdefault(store.bucket or "", obstore.store.MemoryStore())
    if folder is not None:
        return obstore.store.LocalStore(folder, mkdir=True)
    timeout = timedelta(milliseconds=timeout_ms)
    shared: dict[str, Any] = {
        "client_options": {"timeout": timeout, "connect_timeout": timeout, "allow_http": _is_plain(store)},
        "retry_config": {"max_retries": RETRIES_MAX, "retry_timeout": timeout},
    }
    if store.type is ObjectStoreType.S3:
        return obstore.store.S3Store(store.bucket, **_s3(store), **shared)
    if store.type is ObjectStoreType.GCS:
        return obstore.store.GCSStore(store.bucket, **_gcs(store), **shared)
    return obstore.store.AzureStore(store.bucket, **_azure(store), **shared)


def _is_plain(store: ObjectStoreSettings) -> bool:
    return (store.endpoint or "").startswith("http://")


def _s3(store: ObjectStoreSettings) -> dict[str, Any]:
    return _given(
        endpoint=store.endpoint,
        region=store.region or ("us-east-1" if store.endpoint else None),
        access_key_id=_secret(store.access_key_id),
        secret_access_key=_secret(store.secret_access_key),
        session_token=_secret(store.session_token),
        virtual_hosted_style_request=not store.path_style,
        **_encryption(store),
    )


def _encryption(store: ObjectStoreSettings) -> dict[str, str]:
    """Return what has the store encrypt objects with a chosen key; without it, the default of the bucket applies."""
    kind, key = (_secret(store.properties.get(name)) for name in (SSE_TYPE, SSE_KEY))
    if kind in (None, "none"):
        return {}
    if kind not in _SSE:
        field = f"object_store.properties.{SSE_TYPE}"
        raise InvalidSettings(f"{field}: must be one of none, {', '.join(_SSE)} for objects, not {kind!r}", field=field)
    return {"server_side_encryption": _SSE[kind], **({} if key is None else {"sse_kms_key_id": key})}


def _gcs(store: ObjectStoreSettings) -> dict[str, Any]:
    token = _secret(store.session_token)
    credential = None if token is None else {"token": token, "expires_at": None}
    anonymous = True if store.endpoint and token is None else None
    return _given(
        base_url=store.endpoint,
        credential_provider=None if credential is None else lambda: credential,
        skip_signature=anonymous,
    )


def _azure(store: ObjectStoreSettings) -> dict[str, Any]:
    account = store.properties.get(AZURE_ACCOUNT) or store.access_key_id
    return _given(
        account_name=_secret(account),
        account_key=_secret(store.secret_access_key),
        sas_token=_secret(store.session_token),
        endpoint=store.endpoint,
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _secret(value: Any) -> str | None:
    return None if value is None else str(value.get_secret_value())
