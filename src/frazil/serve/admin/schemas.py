"""Schemas: subjects with their versions, and what each topic asks of its messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from frazil.registry.records import TopicRecord
from frazil.registry.registry import SchemaVersion
from frazil.serve.admin.models import (
    DeletedVersion,
    NewSchema,
    NewTopicSchema,
    RegisteredSchema,
    SchemaCheck,
    SchemaCheckResult,
    SchemaVersionModel,
    SubjectMode,
    SubjectPage,
    SubjectSummary,
    TopicSchemaModel,
    VersionPage,
)
from frazil.serve.admin.openapi import errors
from frazil.serve.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.serve.admin.parts import AdminParts
from frazil.serve.admin.paths import SubjectPath, TopicPath

VERSION_MAX = 2**31 - 1

Version = Annotated[int, Path(ge=1, le=VERSION_MAX)]


def schemas_router(parts: AdminParts) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["schemas"], responses=errors(400, 404, 409, 503))
    _add_subjects(router, parts)
    _add_version_lists(router, parts)
    _add_versions(router, parts)
    _add_check(router, parts)
    _add_topics(router, parts)
    return router


def _add_subjects(router: APIRouter, parts: AdminParts) -> None:
    @router.get("/schemas", operation_id="list_subjects", response_model=SubjectPage)
    def list_subjects(limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """All subjects in the order of their names."""
        registry = parts.broker_parts().registry
        found, more = page(registry.subjects(), lambda one: one, limit, after)
        return {"items": [_subject(parts, one) for one in found], "next": found[-1] if more else None}

    @router.get("/schemas/{subject}", operation_id="describe_subject", response_model=SubjectSummary)
    def describe_subject(subject: SubjectPath) -> dict[str, Any]:
        """One subject: its id, its compatibility mode, how many versions it has."""
        return _subject(parts, subject)

    @router.put("/schemas/{subject}", operation_id="set_compatibility_mode", response_model=SubjectSummary)
    def set_compatibility_mode(subject: SubjectPath, wanted: SubjectMode) -> dict[str, Any]:
        """What a new version must be compatible with, from now on."""
        parts.broker_parts().registry.set_compatibility_mode(subject, wanted.compatibility_mode)
        return _subject(parts, subject)


def _add_version_lists(router: APIRouter, parts: AdminParts) -> None:
    @router.get("/schemas/{subject}/versions", operation_id="list_schema_versions", response_model=VersionPage)
    def list_schema_versions(
        subject: SubjectPath,
        limit: Limit = LIMIT_DEFAULT,
        after: Annotated[int | None, Query(ge=0, le=VERSION_MAX, description="`next` of the page before")] = None,
    ) -> dict[str, Any]:
        """The versions of a subject, oldest first."""
        found, more = page(parts.broker_parts().registry.versions(subject), lambda one: one.version, limit, after)
        return {"items": [asdict(one) for one in found], "next": found[-1].version if more else None}

    @router.post(
        "/schemas/{subject}/versions",
        operation_id="register_schema",
        status_code=201,
        response_model=RegisteredSchema,
        responses={200: {"model": RegisteredSchema, "description": "The subject has it already."}},
    )
    def register_schema(subject: SubjectPath, wanted: NewSchema, response: Response) -> dict[str, Any]:
        """Make a schema the newest version of its subject, unless it is one already. The first makes the subject."""
        made = parts.broker_parts().registry.register(
            subject,
            wanted.schema_type,
            wanted.definition.encode(),
            description=wanted.description,
            created_by=wanted.created_by,
            tags=wanted.tags,
        )
        if not made.is_new_version:
            response.status_code = 200
        return asdict(made)


def _add_versions(router: APIRouter, parts: AdminParts) -> None:
    @router.get("/schemas/{subject}/latest", operation_id="get_latest_schema", response_model=SchemaVersionModel)
    def get_latest_schema(subject: SubjectPath) -> dict[str, Any]:
        """The newest version, with its definition."""
        return _version(parts.broker_parts().registry.latest(subject))

    @router.get("/schemas/{subject}/versions/{version}", operation_id="get_schema", response_model=SchemaVersionModel)
    def get_schema(subject: SubjectPath, version: Version) -> dict[str, Any]:
        """One version, with its definition."""
        return _version(parts.broker_parts().registry.version(subject, version))

    @router.delete("/schemas/{subject}/versions/{version}", operation_id="delete_schema", response_model=DeletedVersion)
    def delete_schema(subject: SubjectPath, version: Version) -> dict[str, Any]:
        """Delete a version. Its number is not used again, and the subject stays."""
        parts.broker_parts().registry.delete_version(subject, version)
        return {"subject": subject, "version": version, "deleted": True}


def _add_check(router: APIRouter, parts: AdminParts) -> None:
    @router.post("/schemas/{subject}/check", operation_id="check_schema", response_model=SchemaCheckResult)
    def check_schema(subject: SubjectPath, wanted: SchemaCheck) -> dict[str, Any]:
        """Whether a schema could be registered now, and every reason why not. Nothing is registered."""
        reasons = parts.broker_parts().registry.check_compatibility(
            subject, wanted.schema_type, wanted.definition.encode(), wanted.compatibility_mode
        )
        return {"compatible": not reasons, "reasons": reasons}


def _add_topics(router: APIRouter, parts: AdminParts) -> None:
    path = "/topics/{namespace}/{topic}/schema"

    @router.get(path, operation_id="get_topic_schema", response_model=TopicSchemaModel)
    def get_topic_schema(name: TopicPath) -> dict[str, Any]:
        """Which subject a topic has, and what becomes of messages that do not fit. Partitions share it."""
        return _topic(str(name), parts.broker_parts().topics.get(str(name)))

    @router.put(path, operation_id="set_topic_schema", response_model=TopicSchemaModel)
    def set_topic_schema(name: TopicPath, wanted: NewTopicSchema) -> dict[str, Any]:
        """Give a topic a subject, whatever it had."""
        changed = parts.broker_parts().topics.configure(
            str(name), wanted.subject, wanted.validation_policy, wanted.enable_payload_validation
        )
        return _topic(str(name), changed)


def _subject(parts: AdminParts, subject: str) -> dict[str, Any]:
    registry = parts.broker_parts().registry
    return {
        "subject": subject,
        "schema_id": registry.schema_id(subject),
        "compatibility_mode": str(registry.compatibility_mode(subject)),
        "versions": len(registry.versions(subject)),
    }


def _version(found: SchemaVersion) -> dict[str, Any]:
    return {
        **asdict(found.info),
        "subject": found.subject,
        "compatibility_mode": str(found.compatibility_mode),
        "schema_type": str(found.definition.type),
        "definition": found.definition.text,
    }


def _topic(name: str, record: TopicRecord) -> dict[str, Any]:
    return {
        "topic": name,
        "subject": record.subject,
        "schema_id": record.schema_id,
        "validation_policy": str(record.policy),
        "enable_payload_validation": record.checks_payloads,
    }
