"""Protocol Buffers: compiled by protoc itself, in a process of its own, and kept as the descriptors that it made.

The first message of a file is that of the payloads. Files may import what comes with protoc, and nothing else.
"""

from __future__ import annotations

import base64
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from frazil.core.errors import InvalidSchema, NotInstalled, TryLater
from frazil.core.extras import install_hint
from frazil.registry.definition import FIELD, Definition, Validator
from frazil.registry.kinds import SchemaType
from frazil.registry.protobuf_reading import reading_problems

COMPILE_S_MAX = 30.0
_FILE = "schema.proto"
_DESCRIPTORS = "descriptors"


class ProtobufSchema(Definition):
    type = SchemaType.PROTOBUF

    def __init__(self, text: str, extra: dict[str, str] | None = None) -> None:
        self._compiled = base64.b64decode(extra[_DESCRIPTORS]) if extra else _compile(text)
        files = descriptor_pb2.FileDescriptorSet.FromString(self._compiled).file
        own = files[-1]  # behind what it imports
        if not own.message_type:
            raise InvalidSchema(FIELD, "has no message")
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files:
                pool.Add(file)
        except TypeError as error:  # what protoc takes and this library does not
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
    with tempfile.TemporaryDirectory(prefix="frazil-proto-") as folder:
        source, result = Path(folder, _FILE), Path(folder, "descriptors")
        source.write_text(text, encoding="utf-8", newline="")
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter, and a name that is always the same
                [*command, f"--descriptor_set_out={result.name}", _FILE],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMPILE_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TryLater(f"{FIELD}: protoc did not end in {COMPILE_S_MAX:.0f} s; try again") from None
        if done.returncode != 0 or not result.exists():
            said = "; ".join(done.stderr.decode(errors="replace").split("\n")).strip("; ")
            raise InvalidSchema(FIELD, f"is not Protocol Buffers: {said:.500}")
        return result.read_bytes()
