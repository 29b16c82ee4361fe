"""Messages of other libraries' errors, on one line and without secrets.

A database's or a server's message may repeat the URL, the key or the token it refused. So every such message passes
through this module before it reaches an error, a log or a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MASK = "***"
LENGTH_MAX = 300

_SECRET_NAME = re.compile(r"secret|token|credential|password|passwd|account-key|access-key|connection-string|auth")
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):[^/\s]*@")


def reason(error: BaseException, properties: Mapping[str, Any]) -> str:
    """Return the error's kind and first line; `properties` are those that the library was given."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = masked(lines[0] if lines else "no reason given", properties)
    if len(text) > LENGTH_MAX:
        text = text[:LENGTH_MAX] + "…"
    return f"{type(error).__name__}: {text}"


def masked(text: str, properties: Mapping[str, Any]) -> str:
    """Mask secrets, the longest first, so that none remains in part; then passwords in any other URLs."""
    for secret in sorted(set(_secrets(properties)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)


def _secrets(properties: Mapping[str, Any]) -> Iterator[str]:
    for name, value in properties.items():
        if isinstance(value, Mapping):
            yield from _secrets({f"{name}.{inner}": each for inner, each in value.items()})
        elif isinstance(value, str) and value:
            if _SECRET_NAME.search(name.lower()):
                yield value
                yield from (part for part in value.split(":", 1)[1:] if part)  # a credential is id:secret
            elif "://" in value:
                yield from _url_secrets(value)


def _url_secrets(url: str) -> Iterator[str]:
    """Return the password of a URL, encoded and decoded, and query values whose name suggests a secret."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:  # not a URL
        yield url
        return
    if password:
        yield from {password, unquote(password)}
    for name, value in parse_qsl(parts.query):
        if _SECRET_NAME.search(name.lower()) and value:
            yield value
