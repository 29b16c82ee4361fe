"""Read manifests and manifest lists completely, or refuse them.

PyIceberg 0.12 treats a truncated Avro file as one without further entries, and its decoder reads beyond the end of its
buffer. With a store that serves half a file, rows would vanish: from a reader's plan, and permanently from the next
commit, which copies its parent's entries. So its reader is replaced, in every process that opens a catalog, by one that
first checks that the file is complete.

    format    the file begins and ends as Avro requires, and each block has its declared length
    counts    a manifest has as many entries as its list says; a list is not empty if the snapshot has data files

The error is an `OSError`, as for any store that answers wrongly: nothing is known to be lost, and the file is read
again.
"""

from __future__ import annotations

import io
from typing import TypeVar

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, InputFile, InputStream
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import StructProtocol

from frazil.lake.pyiceberg_private import replace_manifest_reading

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
VARINT_BYTES_MAX = 10
SHOWN_BYTES = 40
TOTAL_FILES = "total-data-files"

Entry = TypeVar("Entry", bound=StructProtocol)


def check_whole(data: bytes, path: str) -> None:
    """Raise `OSError` unless these are all bytes of an Avro file."""
    if not data.startswith(MAGIC):
        raise OSError(f"{path} is not an Avro file: it has {len(data)} bytes and begins with {data[:SHOWN_BYTES]!r}")
    frames = _Frames(data)
    try:
        sync = frames.header()
        while frames.at < len(data):
            frames.block(sync)
    except _Cut:
        raise OSError(f"{path} is not whole: it ends or breaks off after {len(data)} bytes") from None


class _Cut(Exception):
    """The bytes end early, or are not Avro."""


class _Frames:
    """The frames of an Avro file, without decoding their contents."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = len(MAGIC)

    def header(self) -> bytes:
        """Skip the header; returns the marker that follows each block."""
        while count := self._number():
            if count < 0:
                self._number()  # the size of the block, for readers that skip it
            for _ in range(2 * abs(count)):
                self._take(self._number())
        return self._take(SYNC_BYTES)

    def block(self, sync: bytes) -> None:
        self._number()
        self._take(self._number())
        if self._take(SYNC_BYTES) != sync:
            raise _Cut

    def _take(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size] if size >= 0 else b""
        if len(found) != size:
            raise _Cut
        self.at += size
        return found

    def _number(self) -> int:
        """Decode a zigzag varint."""
        value = 0
        for place in range(VARINT_BYTES_MAX):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise _Cut


class _WholeAvroFile(AvroFile[Entry]):
    __slots__ = ()

    def __enter__(self) -> AvroFile[Entry]:
        with self.input_file.open() as source:
            data = source.read()
        check_whole(data, self.input_file.location)
        self.input_file = _Read(self.input_file.location, data)
        return super().__enter__()


class _Read(InputFile):
    """A file that is already in memory."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._bytes = data

    def __len__(self) -> int:
        return len(self._bytes)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - as PyIceberg has it
        return io.BytesIO(self._bytes)


def check_listed(snapshot: Snapshot, count: int) -> None:
    """Raise `OSError` if a list has no manifests although the snapshot's summary has data files."""
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    files = summary.get(TOTAL_FILES, "0")
    if not count and files not in ("", "0"):
        raise OSError(f"{snapshot.manifest_list} is not whole: it names no manifest, and there are {files} data files")


_listed = Snapshot.manifests
_entries = ManifestFile.fetch_manifest_entry


def _manifests(self: Snapshot, io: FileIO) -> list[ManifestFile]:
    found = _listed(self, io)
    check_listed(self, len(found))
    return found


def _fetch(self: ManifestFile, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
    found = _entries(self, io, discard_deleted=False)
    counts = (self.added_files_count, self.existing_files_count, self.deleted_files_count)
    if None not in counts and len(found) != sum(count or 0 for count in counts):
        raise OSError(f"{self.manifest_path} is not whole: it has {len(found)} entries, and its list says {counts}")
    return [each for each in found if not discard_deleted or each.status != ManifestEntryStatus.DELETED]


def read_whole() -> None:
    """Install the checking reader in PyIceberg, for this process."""
    replace_manifest_reading(_WholeAvroFile, _manifests, _fetch)
