"""Schemas: subjects with their versions, and the validation policy of each topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.principal import Principal
from frazil.doors.http.access import Who, needs, shown
from frazil.doors.http.admin.models import (
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
from frazil.doors.http.admin.openapi import errors
from frazil.doors.http.admin.paging import LIMIT_DEFAULT, After, Limit, page
from frazil.doors.http.admin.paths import SubjectPath, TopicPath
from frazil.doors.http.admin.rights import on_schema, on_topic
from frazil.node.access.hidden import schema_conflicts_hidden
from frazil.node.node import Node
from frazil.node.types.registry import SchemaVersion, TopicSchemaRecord

VERSION_MAX = 2**31 - 1

Version = Annotated[int, Path(ge=1, le=VERSION_MAX)]


def schemas_router(node: Node) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["schemas"], responses=errors(400, 404, 409, 503))
    _add_subjects(router, node)
    _add_version_lists(router, node)
    _add_versions(router, node)
    _add_check(router, node)
    _add_topics(router, node)
    return router


def _add_subjects(router: APIRouter, node: Node) -> None:
    @router.get("/schemas", operation_id="list_subjects", response_model=SubjectPage, dependencies=[needs()])
    def list_subjects(who: Who, limit: Limit = LIMIT_DEFAULT, after: After = None) -> dict[str, Any]:
        """List all subjects, sorted by name."""
        registry = node.registry(who)
        found, more = page(shown(node.gate, who, registry.subjects(), access.schema), lambda one: one, limit, after)
        return {"items": [_subject(node, who, one) for one in found], "next": found[-1] if more else None}

    @router.get(
        "/schemas/{subject}",
        operation_id="describe_subject",
        response_model=SubjectSummary,
        dependencies=[needs(on_schema(Action.DESCRIBE))],
    )
    def describe_subject(who: Who, subject: SubjectPath) -> dict[str, Any]:
        """Show a subject: its id, its compatibility mode, its number of versions."""
        return _subject(node, who, subject)

    @router.put(
        "/schemas/{subject}",
        operation_id="set_compatibility_mode",
        response_model=SubjectSummary,
        dependencies=[needs(on_schema(Action.ALTER))],
    )
    def set_compatibility_mode(who: Who, subject: SubjectPath, wanted: SubjectMode) -> dict[str, Any]:
        """Set the compatibility mode for new versions."""
        node.registry(who).set_compatibility_mode(subject, wanted.compatibility_mode)
        return _subject(node, who, subject)


def _add_version_lists(router: APIRouter, node: Node) -> None:
    @router.get(
        "/schemas/{subject}/versions",
        operation_id="list_schema_versions",
        response_model=VersionPage,
        dependencies=[needs(on_schema(Action.DESCRIBE))],
    )
    def list_schema_versions(
        who: Who,
        subject: SubjectPath,
        limit: Limit = LIMIT_DEFAULT,
        after: Annotated[int | None, Query(ge=0, le=VERSION_MAX, description="`next` of the previous page")] = None,
    ) -> dict[str, Any]:
        """List the versions of a subject, oldest first."""
        found, more = page(node.registry(who).versions(subject), lambda one: one.version, limit, after)
        return {"items": [asdict(one) for one in found], "next": found[-1].version if more else None}

    @router.post(
        "/schemas/{subject}/versions",
        operation_id="register_schema",
        status_code=201,
        response_model=RegisteredSchema,
        responses={200: {"model": RegisteredSchema, "description": "The subject already has this schema."}},
        dependencies=[needs(on_schema(Action.CREATE))],
    )
    def register_schema(who: Who, subject: SubjectPath, wanted: NewSchema, response: Response) -> dict[str, Any]:
        """Register a schema as the newest version of its subject, unless it exists. The first creates the subject."""
        with schema_conflicts_hidden(node.gate, who, subject):
            made = node.registry(who).register(
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


def _add_versions(router: APIRouter, node: Node) -> None:
    @router.get(
        "/schemas/{subject}/latest",
        operation_id="get_latest_schema",
        response_model=SchemaVersionModel,
        dependencies=[needs(on_schema(Action.DESCRIBE))],
    )
    def get_latest_schema(who: Who, subject: SubjectPath) -> dict[str, Any]:
        """Show the newest version, with its definition."""
        return _version(node.registry(who).latest(subject))

    @router.get(
        "/schemas/{subject}/versions/{version}",
        operation_id="get_schema",
        response_model=SchemaVersionModel,
        dependencies=[needs(on_schema(Action.DESCRIBE))],
    )
    def get_schema(who: Who, subject: SubjectPath, version: Version) -> dict[str, Any]:
        """Show one version, with its definition."""
        return _version(node.registry(who).version(subject, version))

    @router.delete(
        "/schemas/{subject}/versions/{version}",
        operation_id="delete_schema",
        response_model=DeletedVersion,
        dependencies=[needs(on_schema(Action.DELETE))],
    )
    def delete_schema(who: Who, subject: SubjectPath, version: Version) -> dict[str, Any]:
        """Delete a version. Its number is not reused, and the subject is kept."""
        node.registry(who).delete_version(subject, version)
        return {"subject": subject, "version": version, "deleted": True}


def _add_check(router: APIRouter, node: Node) -> None:
    @router.post(
        "/schemas/{subject}/check",
        operation_id="check_schema",
        response_model=SchemaCheckResult,
        dependencies=[needs(on_schema(Action.DESCRIBE))],
    )
    def check_schema(who: Who, subject: SubjectPath, wanted: SchemaCheck) -> dict[str, Any]:
        """Check whether a schema could be registered now, and list all reasons why not. Nothing is registered."""
        reasons = node.registry(who).check_compatibility(
            subject, wanted.schema_type, wanted.definition.encode(), wanted.compatibility_mode
        )
        return {"compatible": not reasons, "reasons": reasons}


def _add_topics(router: APIRouter, node: Node) -> None:
    path = "/topics/{namespace}/{topic}/schema"

    async def rights(wanted: NewTopicSchema) -> Sequence[Right]:
        return [Right(Action.DESCRIBE, access.schema(wanted.subject))]

    @router.get(
        path,
        operation_id="get_topic_schema",
        response_model=TopicSchemaModel,
        dependencies=[needs(on_topic(Action.DESCRIBE))],
    )
    def get_topic_schema(who: Who, name: TopicPath) -> dict[str, Any]:
        """Show the subject of a topic, and how messages that do not match it are handled. Partitions share it."""
        return _topic(str(name), node.schemas(who).get(str(name)))

    @router.put(
        path,
        operation_id="set_topic_schema",
        response_model=TopicSchemaModel,
        dependencies=[needs(on_topic(Action.ALTER)), needs(rights)],
    )
    def set_topic_schema(who: Who, name: TopicPath, wanted: NewTopicSchema) -> dict[str, Any]:
        """Set the subject of a topic, replacing any other."""
        changed = node.schemas(who).configure(
            str(name), wanted.subject, wanted.validation_policy, wanted.enable_payload_validation
        )
        return _topic(str(name), changed)


def _subject(node: Node, who: Principal, subject: str) -> dict[str, Any]:
    registry = node.registry(who)
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


def _topic(name: str, record: TopicSchemaRecord) -> dict[str, Any]:
    return {
        "topic": name,
        "subject": record.subject,
        "schema_id": record.schema_id,
        "validation_policy": str(record.policy),
        "enable_payload_validation": record.checks_payloads,
    }
