"""An object store through obstore. Only this module and `opening` know that library."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from frazil.core.disk import LocalDisk
from frazil.core.errors import ObjectStoreUnavailable
from frazil.objects.store import ObjectChanged, ObjectExists, ObjectInfo, ObjectMissing

if TYPE_CHECKING:
    from obstore import GetOptions

LIST_CHUNK = 1_000
DELETE_CHUNK = 1_000
REASON_CHARS_MAX = 300
NEW_SUFFIX = ".new"
"""Of a local file that is no object yet; a crash may leave some."""


class ObstoreObjects:
    """The objects below a prefix of a store. `sync_folder` is the folder of a local store, which must be synced.

    A local store has no ETags: the library makes them of inodes and times, so each file of a backup would be another.
    """

    def __init__(self, store: Any, prefix: str, *, sync_folder: Path | None = None) -> None:
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._folder = sync_folder

    def create(self, name: str, content: bytes | memoryview) -> str | None:
        with self._errors(name):
            try:
                etag = self._put(self._path(name), content)
            except AlreadyExistsError:  # perhaps our own, whose answer was lost
                etag = self._own_etag(name, content)
            if self._folder is not None:
                self._sync(self._folder / self._path(name))
            return etag

    def _put(self, path: str, content: bytes | memoryview) -> str | None:
        """Store an object whole or not at all. The library does not sync files: a local object gets its name, which
        nobody else can take, once its bytes are durable, or a power cut would leave a name with a part of them."""
        if self._folder is None:
            etag: str | None = obstore.put(self._store, path, content, mode="create")["e_tag"]
            return etag
        unnamed = f"{path}.{uuid.uuid4().hex}{NEW_SUFFIX}"
        try:
            obstore.put(self._store, unnamed, content)
            self._sync_file(self._folder / unnamed)
            obstore.rename(self._store, unnamed, path, overwrite=False)
        except BaseException:
            with contextlib.suppress(BaseError, OSError):
                obstore.delete(self._store, unnamed)
            raise
        return None

    def _own_etag(self, name: str, content: bytes | memoryview) -> str | None:
        """Return the ETag of the object that has a name, if it has this content; raises `ObjectExists` otherwise.

        S3 also refuses a name while another request for it, perhaps our own that timed out, is under way.
        """
        try:
            if self.get(name) != content:
                raise ObjectExists(name) from None
            return self.head(name).etag
        except ObjectMissing:
            raise ObjectStoreUnavailable(name, "another request for this name is under way, or removed it") from None

    def get(self, name: str, *, etag: str | None = None) -> bytes:
        with self._errors(name):
            options: GetOptions = {} if self._etag(etag) is None else {"if_match": etag}
            return bytes(obstore.get(self._store, self._path(name), options=options).bytes())

    def get_range(self, name: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        with self._errors(name):
            options: GetOptions = {"range": (start, start + length)}
            if self._etag(etag) is not None:
                options["if_match"] = etag
            return bytes(obstore.get(self._store, self._path(name), options=options).bytes())

    def head(self, name: str) -> ObjectInfo:
        with self._errors(name):
            return self._info(obstore.head(self._store, self._path(name)))

    def walk(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """The library sorts the names of no local store, so all are gathered."""
        assert prefix.endswith("/"), prefix
        offset = None if after is None else self._path(after)
        with self._errors(prefix):
            found = obstore.list(self._store, self._path(prefix), offset=offset, chunk_size=LIST_CHUNK)
            infos = [self._info(one) for chunk in found for one in chunk]
        return iter(sorted(infos, key=lambda info: info.name))

    def folders(self, prefix: str) -> list[str]:
        with self._errors(prefix):
            path = self._path(prefix).rstrip("/")
            found = obstore.list_with_delimiter(self._store, path or None)["common_prefixes"]
        return sorted(one.rstrip("/").rpartition("/")[2] for one in found)

    def delete(self, names: Iterable[str]) -> None:
        with self._errors("deletion"):
            paths = [self._path(name) for name in names]
            for at in range(0, len(paths), DELETE_CHUNK):
                self._delete_all(paths[at : at + DELETE_CHUNK])

    def _delete_all(self, paths: list[str]) -> None:
        """Some stores end at the first object that is missing: then the others are removed one by one."""
        try:
            obstore.delete(self._store, paths)
        except FileNotFoundError:
            for path in paths if len(paths) > 1 else ():
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, path)

    def _path(self, name: str) -> str:
        return self._prefix + name

    def _etag(self, etag: str | None) -> str | None:
        return etag if self._folder is None else None

    def _info(self, meta: Any) -> ObjectInfo:
        modified: datetime = meta["last_modified"]
        name = str(meta["path"]).removeprefix(self._prefix)
        return ObjectInfo(name, int(meta["size"]), self._etag(meta["e_tag"]), int(modified.timestamp() * 1e6))

    def _sync(self, path: Path) -> None:
        """Make a file of a local store durable, and its name."""
        self._sync_file(path)
        assert self._folder is not None
        disk = LocalDisk()
        for folder in path.parents:
            disk.sync_folder(folder)
            if folder == self._folder:
                break

    def _sync_file(self, path: Path) -> None:
        file = LocalDisk().open(path, "write")
        try:
            file.sync()
        finally:
            file.close()

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectMissing(name) from None
        except PreconditionError:
            raise ObjectChanged(name) from None
        except (BaseError, OSError, ValueError) as error:
            raise ObjectStoreUnavailable(name, reason_of(error)) from error


def reason_of(error: BaseException) -> str:
    """Return the library's message without its debug output."""
    return str(error).partition("\n")[0][:REASON_CHARS_MAX]
