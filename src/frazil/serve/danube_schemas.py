"""The schema registry's side of the Danube door: their calls over `frazil.registry`, and what producers ask of it.

The registry blocks, so calls run in threads of their own: a metadata store that hangs holds up no topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from frazil.core.errors import SchemaNotFound
from frazil.registry.registry import SchemaRegistry, SchemaVersion
from frazil.registry.topics import TopicSchemas
from frazil.serve.danube_proto import SchemaRegistry_pb2 as pb
from frazil.serve.threads import Threads

Answer = Callable[[Any], Awaitable[Any]]


class DanubeSchemas:
    def __init__(self, registry: SchemaRegistry, topics: TopicSchemas, threads: Threads) -> None:
        self._registry = registry
        self._topics = topics
        self._threads = threads

    # --- for producers

    async def bind(self, topic: str, reference: Any) -> None:
        """What a producer means to send: it must be there, and the topic must be of that subject or of none."""
        await self._threads.run(self._bind, topic, reference)

    def _bind(self, topic: str, reference: Any) -> None:
        subject, which = reference.subject, reference.WhichOneof("version_ref")
        if which == "pinned_version":
            self._registry.version(subject, reference.pinned_version)
        elif which == "min_version" and self._registry.latest(subject).info.version < reference.min_version:
            raise SchemaNotFound(subject, reference.min_version)
        self._topics.bind(topic, subject)

    # --- their calls

    def calls(self) -> dict[str, tuple[Answer, Any]]:
        return {
            "RegisterSchema": (self._register, pb.RegisterSchemaRequest),
            "GetSchema": (self._get, pb.GetSchemaRequest),
            "GetLatestSchema": (self._latest, pb.GetLatestSchemaRequest),
            "ListVersions": (self._versions, pb.ListVersionsRequest),
            "CheckCompatibility": (self._compatible, pb.CheckCompatibilityRequest),
            "DeleteSchemaVersion": (self._delete, pb.DeleteSchemaVersionRequest),
            "SetCompatibilityMode": (self._set_mode, pb.SetCompatibilityModeRequest),
            "ConfigureTopicSchema": (self._configure, pb.ConfigureTopicSchemaRequest),
            "UpdateTopicValidationPolicy": (self._set_policy, pb.UpdateTopicValidationPolicyRequest),
            "GetTopicSchemaConfig": (self._topic, pb.GetTopicSchemaConfigRequest),
        }

    async def _register(self, request: Any) -> Any:
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
        return _shown(await self._threads.run(self._registry.get, request.schema_id, version))

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
        return pb.GetTopicSchemaConfigResponse(
            schema_subject=found.subject or "",
            validation_policy=str(found.policy),
            enable_payload_validation=found.checks_payloads,
            schema_id=found.schema_id or 0,
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
