"""The schema registry calls of the Danube door, and the schema check of new producers.

The registry blocks, so calls run in separate threads: a hanging metadata store delays no topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import SchemaNotFound
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.admission import BY_HANDLER, Needs, Rights, who
from frazil.doors.calls import Answer, Method
from frazil.doors.danube.proto import SchemaRegistry_pb2 as pb
from frazil.doors.rights import on_schema, on_topic
from frazil.node.access.hidden import schema_conflicts_hidden
from frazil.node.node import Node
from frazil.node.types.registry import SchemaVersion


class DanubeSchemas:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._registry = node.registry(ANONYMOUS)
        self._topics = node.schemas(ANONYMOUS)
        self._threads = node.schema_threads(ANONYMOUS)

    # --- for producers

    async def bind(self, caller: Principal, topic: str, reference: Any, *, is_new: bool) -> None:
        """Check the schema of a producer: it must exist, and the topic must have that subject or none.

        To give a subject to a topic that has none is to alter it, unless the caller creates the topic (`is_new`).
        """
        await self._threads.run(self._bind, caller, topic, reference, is_new)

    def _bind(self, caller: Principal, topic: str, reference: Any, is_new: bool) -> None:
        subject, which = reference.subject, reference.WhichOneof("version_ref")
        self._node.must(caller, Action.DESCRIBE, access.schema(subject))
        if not is_new and self._node.gate.is_on and self._topics.get(topic).subject is None:
            self._node.gate.check(caller, Action.ALTER, access.topic(topic))
        if which == "pinned_version":
            self._registry.version(subject, reference.pinned_version)
        elif which == "min_version" and self._registry.latest(subject).info.version < reference.min_version:
            raise SchemaNotFound(subject, reference.min_version)
        self._topics.bind(topic, subject)

    # --- registry calls

    def methods(self) -> list[Method]:
        def on(action: Action) -> Rights:
            return on_schema("subject", action)

        alter, describe = on_topic("topic_name", Action.ALTER), on_topic("topic_name", Action.DESCRIBE)
        table: list[tuple[str, Answer, Rights | Needs]] = [
            ("RegisterSchema", self._register, on(Action.CREATE)),
            ("GetSchema", self._get, BY_HANDLER),
            ("GetLatestSchema", self._latest, on(Action.DESCRIBE)),
            ("ListVersions", self._versions, on(Action.DESCRIBE)),
            ("CheckCompatibility", self._compatible, on(Action.DESCRIBE)),
            ("DeleteSchemaVersion", self._delete, on(Action.DELETE)),
            ("SetCompatibilityMode", self._set_mode, on(Action.ALTER)),
            ("ConfigureTopicSchema", self._configure, _configure_rights),
            ("UpdateTopicValidationPolicy", self._set_policy, alter),
            ("GetTopicSchemaConfig", self._topic, describe),
        ]
        known = pb.DESCRIPTOR.services_by_name["SchemaRegistry"].methods_by_name
        made = []
        for name, handler, needs in table:
            request, answer = (GetMessageClass(one) for one in (known[name].input_type, known[name].output_type))
            made.append(Method(name, request, handler, needs, answer))
        return made

    async def _register(self, request: Any) -> Any:
        with schema_conflicts_hidden(self._node.gate, who(), request.subject):
            made = await self._threads.run(
                self._registry.register,
                request.subject,
                request.schema_type,
                request.schema_definition,
                description=request.description,
                created_by=request.created_by,
                tags=tuple(request.tags),
            )
        return pb.RegisterSchemaResponse(
            schema_id=made.schema_id,
            version=made.version,
            is_new_version=made.is_new_version,
            fingerprint=made.fingerprint,
        )

    async def _get(self, request: Any) -> Any:
        version = request.version if request.HasField("version") else None
        return _shown(await self._threads.run(self._by_id, who(), request.schema_id, version))

    def _by_id(self, caller: Principal, schema_id: int, version: int | None) -> SchemaVersion:
        """An id names no subject: a hidden one is as unknown as one that was never issued."""
        try:
            found = self._registry.get(schema_id, version)
        except SchemaNotFound as error:
            if self._is_hidden(caller, error.fields.get("subject")):
                raise SchemaNotFound(schema_id=schema_id) from None
            raise
        if self._is_hidden(caller, found.subject):
            raise SchemaNotFound(schema_id=schema_id)
        return found

    def _is_hidden(self, caller: Principal, subject: str | None) -> bool:
        return subject is not None and not self._node.gate.allows(caller, Action.DESCRIBE, access.schema(subject))

    async def _latest(self, request: Any) -> Any:
        return _shown(await self._threads.run(self._registry.latest, request.subject))

    async def _versions(self, request: Any) -> Any:
        found = await self._threads.run(self._registry.versions, request.subject)
        versions = [
            pb.SchemaVersionInfo(
                version=one.version,
                created_at=one.created_at_us // 1_000_000,
                created_by=one.created_by,
                description=one.description,
                fingerprint=one.fingerprint,
                schema_id=one.schema_id,
            )
            for one in found
        ]
        return pb.ListVersionsResponse(versions=versions)

    async def _compatible(self, request: Any) -> Any:
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else None
        problems = await self._threads.run(
            self._registry.check_compatibility,
            request.subject,
            request.schema_type,
            request.new_schema_definition,
            mode,
        )
        return pb.CheckCompatibilityResponse(is_compatible=not problems, errors=problems)

    async def _delete(self, request: Any) -> Any:
        await self._threads.run(self._registry.delete_version, request.subject, request.version)
        return pb.DeleteSchemaVersionResponse(success=True, message=f"version {request.version} is deleted")

    async def _set_mode(self, request: Any) -> Any:
        mode = await self._threads.run(
            self._registry.set_compatibility_mode, request.subject, request.compatibility_mode
        )
        return pb.SetCompatibilityModeResponse(success=True, message=f"{request.subject} is checked {mode}")

    async def _configure(self, request: Any) -> Any:
        await self._threads.run(
            self._topics.configure,
            request.topic_name,
            request.schema_subject,
            request.validation_policy,
            request.enable_payload_validation,
        )
        return pb.ConfigureTopicSchemaResponse(
            success=True, message=f"{request.topic_name} has {request.schema_subject}"
        )

    async def _set_policy(self, request: Any) -> Any:
        await self._threads.run(
            self._topics.set_policy, request.topic_name, request.validation_policy, request.enable_payload_validation
        )
        return pb.UpdateTopicValidationPolicyResponse(
            success=True, message=f"{request.topic_name}: {request.validation_policy}"
        )

    async def _topic(self, request: Any) -> Any:
        found = await self._threads.run(self._topics.get, request.topic_name)
        is_hidden = self._is_hidden(who(), found.subject)
        return pb.GetTopicSchemaConfigResponse(
            schema_subject="" if is_hidden else found.subject or "",
            validation_policy=str(found.policy),
            enable_payload_validation=found.checks_payloads,
            schema_id=0 if is_hidden else found.schema_id or 0,
        )


def _configure_rights(request: Any) -> Sequence[Right]:
    return (
        Right(Action.ALTER, access.topic(request.topic_name)),
        Right(Action.DESCRIBE, access.schema(request.schema_subject)),
    )


def _shown(found: SchemaVersion) -> Any:
    info = found.info
    return pb.GetSchemaResponse(
        schema_id=info.schema_id,
        version=info.version,
        subject=found.subject,
        schema_type=str(found.definition.type),
        schema_definition=found.definition.tagged_json(),
        description=info.description,
        created_at=info.created_at_us // 1_000_000,
        created_by=info.created_by,
        tags=list(info.tags),
        fingerprint=info.fingerprint,
        compatibility_mode=str(found.compatibility_mode),
    )
