"""The modes of all that Frazil makes in a data folder: closed to other users of the host, whatever the umask.

Files that libraries make (tables) are closed by the folder around them, which is made here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FILE_MODE = 0o640
FOLDER_MODE = 0o750


def make_private_folder(folder: Path) -> None:
    """Make a folder and its parents. One that is there keeps its mode: its owner may have opened it to others."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, FOLDER_MODE)


def make_private_file(path: Path) -> None:
    """Make an empty file for a library that would leave the mode to the umask. One that is there stays as it is."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def write_private_text(path: Path, text: str) -> None:
    """Write a file of one's own, from its beginning."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
