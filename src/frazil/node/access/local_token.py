"""The local token: who can read the data folder of a running server is `LOCAL` for it.

The server writes it to `~token` with mode 0600 and removes it at the end. The CLI, the mover and the server's jobs read
it there, so no credentials are passed on a command line.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path

TOKEN_FILE = "~token"  # noqa: S105 - the name of a file
PREFIX = "frl_"
TOKEN_MODE = 0o600
_BYTES_MAX = 256


class LocalToken:
    """The token of one run of the server."""

    def __init__(self, folder: Path) -> None:
        """Write a new token, which replaces that of a crashed server."""
        self._path = folder / TOKEN_FILE
        token = PREFIX + secrets.token_hex(32)
        self._token = token.encode()
        draft = self._path.with_name(f"{TOKEN_FILE}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(draft, flags, TOKEN_MODE), "wb") as file:
                os.fchmod(file.fileno(), TOKEN_MODE)  # whatever the umask
                file.write(self._token)
            draft.replace(self._path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    @property
    def token(self) -> str:
        return self._token.decode()

    def is_this(self, given: str) -> bool:
        """Compare in constant time."""
        return given.startswith(PREFIX) and hmac.compare_digest(given.encode(), self._token)

    def remove(self) -> None:
        """Remove the file. It is left alone if another server has written its own token."""
        if read_local_token(self._path.parent) == self.token:
            with contextlib.suppress(OSError):
                self._path.unlink()


def read_local_token(folder: Path) -> str | None:
    """Return the token of the server that owns the folder; None if there is none, or this user may not read it."""
    try:
        fd = os.open(folder / TOKEN_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        text = os.read(fd, _BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)
    return text if text.startswith(PREFIX) and text.isascii() and text.isprintable() else None
