"""File modes of everything Frazil creates in a data folder: closed to other users of the host, whatever the umask.

Files that libraries create (tables) are protected by the folder around them, which is created here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FILE_MODE = 0o640
FOLDER_MODE = 0o750


def make_private_folder(folder: Path) -> None:
    """Create a folder and its parents. An existing folder keeps its mode: its owner may have opened it to others."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, FOLDER_MODE)


def make_private_file(path: Path) -> None:
    """Create an empty file for a library that would leave the mode to the umask. An existing file is unchanged."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def write_private_text(path: Path, text: str) -> None:
    """Overwrite a private file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def close_to_group(path: Path) -> None:
    """Let only the owner read and write a file with secrets; a missing file is left out."""
    with contextlib.suppress(FileNotFoundError):
        os.chmod(path, 0o600)
