"""Objects that are damaged, or forged, in their store."""

from __future__ import annotations

from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import pack_header, unpack_frame
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.reading import name_of


def harm(objects: ObjectsOfLogs, one: StoredObject, damage: str) -> None:
    name, store = name_of(one), objects.store
    content = bytearray(store.get(name))
    store.delete([name])
    if damage == "changed":
        content[len(content) // 2] ^= 1
        store.create(name, bytes(content))
    elif damage == "cut":
        store.create(name, bytes(content[: len(content) // 2]))


def forged_object(content: bytes, old: bytes, new: bytes) -> bytes:
    """An object that is whole, with other rows: its frames have new checksums."""
    made, at, data = b"", 0, memoryview(content)
    while at < len(content):
        frame = unpack_frame(data, at, at)
        payload = bytes(frame.payload).replace(old, new)
        made += pack_header(frame.offset, payload) + payload
        at = frame.end_position
    return made
