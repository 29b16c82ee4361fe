"""The object store's settings in each provider's terms, and the root location of its tables."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import SecretStr

from frazil.core.settings.lake import AZURE_ACCOUNT, ObjectStoreSettings, ObjectStoreType

STORE_CONNECT_S_MAX = 5
STORE_ANSWER_S_MAX = 20
"""The AWS library times out after 1 and 3 seconds, and tries three times: too short for a slow store."""

_FILE_IO = "frazil.lake.files.file_io.TableFileIO"
_AZURE_HOST = ".dfs.core.windows.net"


def store_properties(store: ObjectStoreSettings) -> dict[str, str]:
    """Return PyIceberg's properties of the store; properties given in the settings have priority."""
    return {**_own_properties(store), **plain(store.properties)}


def store_root(store: ObjectStoreSettings) -> str:
    """Return the bucket or container as a location; not for a local store."""
    if store.type is ObjectStoreType.MEMORY:
        return "memory://frazil"
    if store.type is ObjectStoreType.AZURE:
        account, dfs = _account(store), _azure_authorities(store)[1]
        return f"abfss://{store.bucket}@{account}{dfs if dfs.startswith('.') else _AZURE_HOST}"
    return f"{'s3' if store.type is ObjectStoreType.S3 else 'gs'}://{store.bucket}"


def _own_properties(store: ObjectStoreSettings) -> dict[str, str]:
    if store.type is ObjectStoreType.S3:
        return _s3(store)
    if store.type is ObjectStoreType.GCS:
        return _gcs(store)
    if store.type is ObjectStoreType.AZURE:
        return _azure(store)
    return {"py-io-impl": _FILE_IO} if store.type is ObjectStoreType.MEMORY else {}


def _s3(store: ObjectStoreSettings) -> dict[str, str]:
    return given(
        {
            "py-io-impl": _FILE_IO,
            "s3.endpoint": store.endpoint,
            "s3.region": store.region,
            "s3.access-key-id": secret(store.access_key_id),
            "s3.secret-access-key": secret(store.secret_access_key),
            "s3.session-token": secret(store.session_token),
            "s3.force-virtual-addressing": "false" if store.path_style else "true",
            "s3.connect-timeout": str(STORE_CONNECT_S_MAX),
            "s3.request-timeout": str(STORE_ANSWER_S_MAX),
        }
    )


def _gcs(store: ObjectStoreSettings) -> dict[str, str]:
    token = secret(store.session_token)
    return given({"py-io-impl": _FILE_IO, "gcs.service.host": store.endpoint, "gcs.oauth2.token": token})


def _azure(store: ObjectStoreSettings) -> dict[str, str]:
    blob, dfs = _azure_authorities(store)
    scheme = (store.endpoint or "").rpartition("://")[0]
    return given(
        {
            "py-io-impl": _FILE_IO,
            "adls.account-name": _account(store),
            "adls.account-key": secret(store.secret_access_key),
            "adls.sas-token": secret(store.session_token),
            "adls.blob-storage-authority": blob,
            "adls.blob-storage-scheme": scheme,
            "adls.dfs-storage-authority": dfs,
            "adls.dfs-storage-scheme": scheme,
        }
    )


def _azure_authorities(store: ObjectStoreSettings) -> tuple[str, str]:
    """Return the authorities of Blob and Data Lake; PyArrow prepends the account to one that begins with a dot, else
    appends it.
    """
    endpoint, account = store.endpoint or "", _account(store)
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").netloc
    if not host.startswith(f"{account}."):
        return host, host
    host = host.removeprefix(account)
    return host.replace(".dfs.", ".blob.", 1), host.replace(".blob.", ".dfs.", 1)


def _account(store: ObjectStoreSettings) -> str:
    return secret(store.properties.get(AZURE_ACCOUNT)) or secret(store.access_key_id) or ""


def given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def plain(values: dict[str, SecretStr]) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in values.items()}


def secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
