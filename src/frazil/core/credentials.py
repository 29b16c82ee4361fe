"""What a client presents to a server, and what it trusts: certificates as bytes, a token, or the file of a token.

It is a value that can be sent to a task on another host. Its `repr` shows no secret.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.core.errors import InvalidInput, InvalidSettings

if TYPE_CHECKING:
    from frazil.core.settings.security import ClientSettings

TOKEN_LENGTH_MAX = 16 * 1024
FILE_BYTES_MAX = 1024 * 1024
PEM = b"-----BEGIN "

_log = logging.getLogger("frazil.client")


@dataclass(frozen=True, slots=True, repr=False)
class ClientCredentials:
    token: str | None = None
    token_file: Path | None = None
    """Read again when it changes. If it is gone, `token` or the last one is used."""
    ca: bytes | None = None
    """Certificates that sign the server's, PEM; None: the system's."""
    certificate: bytes | None = None
    key: bytes | None = None
    pinned_name: str | None = None
    """`ca` is the server's own certificate, which bears this name: the name in the address does not matter."""
    others: ClientCredentials | None = None
    """For other brokers of the server's cluster. None: the same; those of a server of this host go nowhere else."""

    def __repr__(self) -> str:
        given = [name for name in self.__slots__ if getattr(self, name) is not None]
        return f"ClientCredentials({', '.join(given)})"

    @property
    def has_token(self) -> bool:
        return self.token is not None or self.token_file is not None

    @property
    def for_other_brokers(self) -> ClientCredentials:
        return self if self.others is None else self.others

    def for_tasks(self) -> ClientCredentials:
        """Return them for a task on another host, which has the token's file only if both hosts share it."""
        return replace(self, token=TokenReader(self).read()) if self.token_file is not None else self


NO_CREDENTIALS = ClientCredentials()


def credentials_of(client: ClientSettings) -> ClientCredentials:
    """Read the files that the settings name; raises `InvalidSettings` that names the setting and the file."""
    found = ClientCredentials(
        token=None if client.token is None else client.token.get_secret_value(),
        token_file=client.token_file,
        ca=pem_file(client.ca, "client.ca"),
        certificate=pem_file(client.certificate, "client.certificate"),
        key=pem_file(client.key, "client.key"),
    )
    TokenReader(found).read()
    return found


def pem_file(path: Path | None, setting: str) -> bytes | None:
    """Return the content of a PEM file; None without a path."""
    if path is None:
        return None
    content = _content(path, setting)
    if PEM not in content:
        raise InvalidSettings(f"{setting}: {path} is not a PEM file: it has no line -----BEGIN …-----", field=setting)
    return content


def _content(path: Path, setting: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSettings(f"{setting}: {path} cannot be read: {error.strerror}", field=setting) from None
    if len(content) > FILE_BYTES_MAX:
        raise InvalidSettings(f"{setting}: {path} has more than {FILE_BYTES_MAX} bytes", field=setting)
    return content


def checked_token(token: str, source: str) -> str:
    """Return a token that can be sent as a header. The error does not show it."""
    token = token.strip()
    if not token or len(token) > TOKEN_LENGTH_MAX or not all("!" <= sign <= "~" for sign in token):
        raise InvalidInput(
            f"{source}: a token has 1 to {TOKEN_LENGTH_MAX} printable characters of ASCII without spaces", field=source
        )
    return token


class TokenReader:
    """The current token. Its file is looked at for each call, and read when it has changed. Thread-safe."""

    def __init__(self, given: ClientCredentials) -> None:
        self._file = given.token_file
        self._token = None if given.token is None else checked_token(given.token, "token")
        self._guard = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._has_warned = False

    def read(self) -> str | None:
        if self._file is None:
            return self._token
        with self._guard:
            try:
                now = os.stat(self._file)
                seen = (now.st_mtime_ns, now.st_size, now.st_ino)
                if seen != self._seen:
                    content = _content(self._file, "token_file").decode("ascii", "replace")
                    self._token = checked_token(content, f"token_file {self._file}")
                    self._seen, self._has_warned = seen, False
            except (OSError, InvalidInput) as error:
                if self._token is None:
                    if isinstance(error, InvalidInput):
                        raise
                    reason = f"token_file: {self._file} cannot be read: {error.strerror}"
                    raise InvalidSettings(reason, field="token_file") from None
                if not self._has_warned:
                    self._has_warned = True
                    _log.warning("%s cannot be read; the last token is used", self._file)
            return self._token
