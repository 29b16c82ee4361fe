"""The file of the audit log: whole lines, appended, with rotation by size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

_MODE = 0o600
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AuditFile:
    """Opened at the first write, and again when another program has moved it away. Used by one thread."""

    def __init__(self, path: Path, bytes_max: int, files_max: int) -> None:
        """`files_max`: older files that are kept."""
        self.path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file: int | None = None
        self._size_bytes = 0
        self._is_torn = False  # the last line has no end yet

    def write(self, lines: Sequence[bytes]) -> None:
        """Append lines; raises `OSError`. After an error the next line begins on a new line of the file."""
        if self._file is not None and self._is_moved(self._file):
            self.close()
        for line in lines:
            self._write_line(line)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_line(self, line: bytes) -> None:
        file = self._opened()
        if self._size_bytes and self._size_bytes + len(line) + 1 > self._bytes_max:
            self._rotate()
            file = self._opened()
        left = memoryview((b"\n" if self._is_torn else b"") + line + b"\n")
        self._is_torn = True
        while left:
            written = os.write(file, left)
            self._size_bytes += written
            left = left[written:]
        self._is_torn = False

    def _opened(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, _FLAGS, _MODE)
            os.fchmod(self._file, _MODE)
            self._size_bytes = os.fstat(self._file).st_size
            self._is_torn = self._size_bytes > 0 and os.pread(self._file, 1, self._size_bytes - 1) != b"\n"
        return self._file

    def _is_moved(self, file: int) -> bool:
        try:
            here, there = os.fstat(file), os.stat(self.path)
        except FileNotFoundError:
            return True
        return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino)

    def _rotate(self) -> None:
        self.close()
        for number in range(self._files_max, 0, -1):
            older = self.path if number == 1 else self._older(number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, self._older(number))

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
