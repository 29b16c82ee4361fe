"""Protocol Buffers schemas, compiled by protoc in a separate process and stored as its descriptors.

The first message of a file describes the payloads. Files may import only what is shipped with protoc.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from frazil.core.errors import InvalidSchema, NotInstalled, TryLater
from frazil.core.extras import install_hint
from frazil.core.process.child import run_bounded
from frazil.registry.definition import FIELD, Definition, Validator
from frazil.registry.kinds import SchemaType
from frazil.registry.protobuf.compatibility import reading_problems

COMPILE_S_MAX = 30.0
COMPILING_MAX, WAITING_MAX = 2, 8
"""Processes of protoc, and callers that wait for them: these also take threads of the doors."""
_FILE = "schema.proto"
_DESCRIPTORS = "descriptors"
_compiling = threading.BoundedSemaphore(COMPILING_MAX)
_places = threading.BoundedSemaphore(COMPILING_MAX + WAITING_MAX)


class ProtobufSchema(Definition):
    type = SchemaType.PROTOBUF

    def __init__(self, text: str, extra: dict[str, str] | None = None) -> None:
        self._compiled = base64.b64decode(extra[_DESCRIPTORS]) if extra else _compile(text)
        files = descriptor_pb2.FileDescriptorSet.FromString(self._compiled).file
        own = files[-1]  # after its imports
        if not own.message_type:
            raise InvalidSchema(FIELD, "has no message")
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files:
                pool.Add(file)
        except TypeError as error:  # accepted by protoc, but not by this library
            raise InvalidSchema(FIELD, f"cannot be used: {error}") from None
        self.root = pool.FindFileByName(own.name).message_types_by_name[own.message_type[0].name]
        super().__init__(text, own.SerializeToString(deterministic=True))

    def backward(self, old: Definition) -> list[str]:
        assert isinstance(old, ProtobufSchema)
        return reading_problems(reader=self.root, writer=old.root)

    def forward(self, old: Definition) -> list[str]:
        assert isinstance(old, ProtobufSchema)
        return reading_problems(reader=old.root, writer=self.root)

    def tagged(self) -> Any:
        named = {"raw_proto": self.text, "message_name": self.root.full_name, "fingerprint": self.fingerprint}
        return {"Protobuf": named}

    def extra(self) -> dict[str, str]:
        return {_DESCRIPTORS: base64.b64encode(self._compiled).decode()}

    def validator(self) -> Validator:
        parse: Callable[[bytes], Any] = message_factory.GetMessageClass(self.root).FromString

        def problem(payload: bytes) -> str | None:
            try:
                message = parse(payload)
            except DecodeError as error:
                return str(error)
            if not message.IsInitialized():
                return f"lacks required fields: {', '.join(message.FindInitializationErrors())}"
            size = message.ByteSize()
            message.DiscardUnknownFields()
            return None if message.ByteSize() == size else "has fields that its version does not have"

        return problem


def _compile(text: str) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise NotInstalled(install_hint("grpc_tools"))
    with _in_turn(), tempfile.TemporaryDirectory(prefix="frazil-proto-") as folder:
        source, result = Path(folder, _FILE), Path(folder, "descriptors")
        source.write_text(text, encoding="utf-8", newline="")
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        try:
            command += [f"--descriptor_set_out={result.name}", _FILE]
            done = run_bounded(command, seconds_max=COMPILE_S_MAX, cwd=folder)
        except TimeoutError:
            raise TryLater(f"{FIELD}: protoc did not end in {COMPILE_S_MAX:.0f} s; try again") from None
        if done.code != 0 or not result.exists():
            said = "; ".join(done.stderr.split("\n")).strip("; ")
            raise InvalidSchema(FIELD, f"is not Protocol Buffers: {said:.500}")
        return result.read_bytes()


@contextmanager
def _in_turn() -> Iterator[None]:
    if not _places.acquire(blocking=False):
        raise TryLater(f"{COMPILING_MAX + WAITING_MAX} schemas are compiled or wait for it; try again")
    try:
        with _compiling:
            yield
    finally:
        _places.release()
