"""Classify object store errors, and say what to do about them.

Libraries report the same problems in a dozen ways; only this module distinguishes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from frazil.core.errors import LakeUnavailable
from frazil.lake.catalogs.error_text import reason

NOT_LET_IN = re.compile(
    r"unauthori[sz]ed|forbidden|oautherror|authentication failed|no password supplied|role \S+ does not exist"
    r"|access.?denied|invalid.?access.?key|signature.?does.?not.?match|invalid.?client|unrecognized.?client"
    r"|expired.?token|security token|credentials|\b401\b|\b403\b",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(
    r"no.?such.?bucket|bucket.{0,40}(does not exist|not found)|container.?not.?found|no such container|nosuchbucket"
    r"|\bNOT_FOUND: .*CreateResumableUpload",  # Google's library starts a write; the object need not exist
    re.IGNORECASE,
)
_NO_KEY = re.compile(
    r"user.?not.?found|no user exists|invalid.?access.?key|signature.?does.?not.?match|expired.?token|no credentials"
    r"|authentication.?failed|failed to authenticate|unauthenticated|http_status_code=401|base64",
    re.IGNORECASE,
)
_NO_RIGHT = re.compile(r"permission|not permitted|read-only file system|errno (1|13|30)\b", re.IGNORECASE)
_NO_ROOM = re.compile(r"no space left|errno 28|quota exceeded|errno 122", re.IGNORECASE)

_ENDPOINTS = ("s3.endpoint", "gcs.service.host", "adls.blob-storage-authority")
_TOKENS = ("gcs.oauth2.token", "adls.sas-token")


def is_of_store(error: BaseException) -> bool:
    """Whether the store raised the error. PyArrow raises plain OSErrors; a catalog's connection errors have other
    types.
    """
    kinds = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
    return type(error) is OSError or isinstance(error, (*kinds, pa.ArrowException))


def lake_error(name: object, error: BaseException, place: str, properties: Mapping[str, Any]) -> LakeUnavailable:
    """Return why a table is unavailable: because of its store, or else its catalog."""
    if is_of_store(error):
        return store_error(error, place, properties)
    return LakeUnavailable("catalog", f"{name}: {reason(error, properties)}")


def store_error(error: BaseException, place: str, properties: Mapping[str, Any]) -> LakeUnavailable:
    """`place` is a location in the store, such as `s3://bucket/path`."""
    text, why, bucket = f"{type(error).__name__} {error}", reason(error, properties), _bucket(place)
    if place.startswith("file:") or "://" not in place:
        return _folder_error(text, why, place)
    if _NO_BUCKET.search(text):
        return LakeUnavailable(
            "object_store.bucket",
            f"there is no bucket {bucket} ({why})",
            "create the bucket, or fix object_store.bucket, region and endpoint",
        )
    if _NO_KEY.search(text):
        token = next((name for name in _TOKENS if properties.get(name)), None)
        return LakeUnavailable(
            "object_store.session_token" if token else "object_store.access_key_id",
            f"the store refuses the credentials ({why})",
            "give object_store.session_token a valid token"
            if token
            else "fix object_store.access_key_id and secret_access_key",
        )
    if NOT_LET_IN.search(text):
        return LakeUnavailable(
            "object_store.bucket",
            f"{place} cannot be written with these credentials ({why})",
            "let them read, write and delete there, or use another object_store.bucket",
        )
    endpoint = next((properties[name] for name in _ENDPOINTS if properties.get(name)), None)
    return LakeUnavailable(
        "object_store.endpoint",
        f"the store of {bucket}{f' at {endpoint}' if endpoint else ''} does not answer as it should ({why})",
        "see whether it runs and is the right one; rows wait in the log until it answers",
    )


def _bucket(place: str) -> str:
    """Return the bucket; Azure's locations have the account after the container."""
    return urlsplit(place).netloc.partition("@")[0]


def _folder_error(text: str, why: str, place: str) -> LakeUnavailable:
    if _NO_ROOM.search(text):
        advice = "make room there; rows wait in the log until there is some"
        return LakeUnavailable("object_store.path", f"{place} is full ({why})", advice)
    advice = "see whether it is a folder that can be written, or set object_store.path to another"
    if _NO_RIGHT.search(text):
        advice = "give this user the right to write there, or set object_store.path to another folder"
    return LakeUnavailable("object_store.path", f"{place} cannot be written ({why})", advice)
