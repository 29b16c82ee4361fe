"""Tenants: what is stored of each, and what applies to it.

    /tenants/{tenant}                          {"created_us", "datasets", "limits", "retention", "lifted", …}
    /tenants-deleting/{tenant}/…               see `frazil.node.telemetry.deletion.notes`

A tenant owns all namespaces `{tenant}.…`: its datasets, and any other topics that its keys create there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from frazil.core.errors import FrazilError, InvalidInput
from frazil.core.settings import RetentionSettings
from frazil.core.settings.lake import MIB
from frazil.core.settings.telemetry import (
    FILE_BYTES_MAX,
    FRESHNESS_MS_MAX,
    FRESHNESS_MS_MIN,
    TABLES_MAX_DEFAULT,
    TelemetrySettings,
    TenantLimits,
)

TENANTS = "/tenants/"
DELETING = "/tenants-deleting/"
TENANTS_MAX = 10_000
LIFTED_MAX, KEY_LENGTH_MAX = 50, 256
DATASETS_MAX = 10_000
"""A record has the names of all datasets, and a value is at most 1 MiB."""
_SOURCES = ("resource", "scope", "item")
_TYPES = ("string", "int64", "double", "bool")
COLUMN_PATTERN = r"[a-z][a-z0-9_]{0,59}"
_COLUMN = re.compile(COLUMN_PATTERN, re.ASCII)
_LIMITS = tuple(TenantLimits.model_fields)
SETTINGS = (*_LIMITS, "retention", "lifted", "freshness_ms", "target_file_bytes")
"""What can be set for a tenant."""


def tenant_key(tenant: str) -> str:
    return TENANTS + tenant


class UnreadableTenant(FrazilError):
    """A record that is damaged, or that a newer version wrote."""


class LiftedAttribute(NamedTuple):
    """An attribute that has its own column in the tables of the tenant."""

    source: str
    """`resource`, `scope` or `item`: the span, the log record or the point."""
    key: str
    column: str
    type: str = "string"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as stored. What is None, or not set, is as in the settings."""

    name: str
    created_us: int
    datasets: tuple[str, ...] = ()
    limits: TenantLimits = field(default_factory=TenantLimits)
    retention: RetentionSettings | None = None
    """Of the logs of its datasets."""
    lifted: tuple[LiftedAttribute, ...] = ()
    freshness_ms: int | None = None
    target_file_bytes: int | None = None
    deleting_us: int | None = None
    """Since when it is being deleted: it accepts nothing any more."""

    def encode(self) -> bytes:
        stored = self._own() | {
            "created_us": self.created_us,
            "datasets": list(self.datasets),
            "deleting_us": self.deleting_us,
        }
        return json.dumps(stored, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, name: str, value: bytes) -> Tenant:
        try:
            read = json.loads(value)
            retention = read["retention"]
            return cls(
                name,
                int(read["created_us"]),
                tuple(map(str, read["datasets"])),
                TenantLimits.model_validate(read["limits"]),
                None if retention is None else RetentionSettings.model_validate(retention),
                tuple(LiftedAttribute(**one) for one in read["lifted"]),
                read["freshness_ms"],
                read["target_file_bytes"],
                read["deleting_us"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = type(error).__name__
            raise UnreadableTenant(f"the record of the tenant {name!a:.80} can't be read: {why}") from None

    def as_dict(self, settings: TelemetrySettings) -> dict[str, Any]:
        """Return what is set for it, and what applies to it."""
        limits = self.limits_over(settings.limits)
        return {
            "tenant": self.name,
            "created_us": self.created_us,
            "deleting": self.deleting_us is not None,
            "datasets": list(self.datasets),
            **self._own(),
            "limits": self.limits.model_dump(),
            "effective": {
                "limits": limits.model_dump(),
                "freshness_ms": self.freshness_ms_over(settings),
                "target_file_bytes": self.target_file_bytes or settings.target_file_bytes,
            },
        }

    def limits_over(self, default: TenantLimits) -> TenantLimits:
        own = {name: value for name, value in self.limits if value is not None}
        if default.tables is None:
            own.setdefault("tables", TABLES_MAX_DEFAULT)
        return default.model_copy(update=own) if own else default

    def freshness_ms_over(self, settings: TelemetrySettings) -> int:
        return self.freshness_ms or settings.freshness_ms

    def with_settings(self, given: Mapping[str, Any]) -> Tenant:
        """Return the tenant with some of `SETTINGS` changed; None resets one. Raises `InvalidInput`."""
        unknown = sorted(set(given) - set(SETTINGS))
        if unknown:
            raise InvalidInput(f"{unknown[0]}: a tenant has no such setting", field=unknown[0])
        changed: dict[str, Any] = {
            "limits": _limits({name: given.get(name, getattr(self.limits, name)) for name in _LIMITS})
        }
        if "retention" in given:
            changed["retention"] = _retention(given["retention"])
        if "lifted" in given:
            changed["lifted"] = _lifted(given["lifted"] or ())
        for name, least, most in (
            ("freshness_ms", FRESHNESS_MS_MIN, FRESHNESS_MS_MAX),
            ("target_file_bytes", MIB, FILE_BYTES_MAX),
        ):
            if name in given:
                changed[name] = _number(name, given[name], least, most)
        return replace(self, **changed)

    def with_dataset(self, dataset: str) -> Tenant:
        return replace(self, datasets=tuple(sorted({*self.datasets, dataset})))

    def _own(self) -> dict[str, Any]:
        return {
            "limits": self.limits.model_dump(exclude_none=True),
            "retention": None if self.retention is None else self.retention.model_dump(),
            "lifted": [one._asdict() for one in self.lifted],
            "freshness_ms": self.freshness_ms,
            "target_file_bytes": self.target_file_bytes,
        }


# --- validation of what users give


def _limits(given: Mapping[str, Any]) -> TenantLimits:
    try:
        return TenantLimits.model_validate(given, strict=True)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise InvalidInput(f"{name}: must be a whole number above 0", field=name) from None


def _retention(given: Any) -> RetentionSettings | None:
    if given is None or isinstance(given, RetentionSettings):
        return given
    try:
        return RetentionSettings.model_validate(given, strict=True)
    except ValidationError as error:
        where = ".".join(map(str, ("retention", *error.errors()[0]["loc"])))
        raise InvalidInput(f"{where}: {error.errors()[0]['msg']}", field=where) from None


def _number(name: str, value: Any, least: int, most: int) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(f"{name}: must be between {least} and {most}", field=name)
    return value


def _lifted(given: Iterable[Mapping[str, Any]]) -> tuple[LiftedAttribute, ...]:
    found = tuple(_one_lifted(number, one) for number, one in enumerate(given))
    if len(found) > LIFTED_MAX:
        raise InvalidInput(f"lifted: {len(found)} were given; a tenant has at most {LIFTED_MAX}", field="lifted")
    columns = [one.column for one in found]
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"lifted: the column {twice} is there more than once", field="lifted")
    return found


def _one_lifted(number: int, given: Mapping[str, Any]) -> LiftedAttribute:
    where = f"lifted.{number}"
    if not isinstance(given, Mapping) or not {"source", "key", "column"} <= set(given) <= set(LiftedAttribute._fields):
        raise InvalidInput(f"{where}: must have source, key and column, and may have type", field=where)
    one = LiftedAttribute(**given)
    if one.source not in _SOURCES:
        raise InvalidInput(f"{where}.source: must be one of {', '.join(_SOURCES)}", field=f"{where}.source")
    if not isinstance(one.key, str) or not 1 <= len(one.key) <= KEY_LENGTH_MAX or not one.key.isprintable():
        raise InvalidInput(f"{where}.key: must have 1 to {KEY_LENGTH_MAX} printable characters", field=f"{where}.key")
    if not isinstance(one.column, str) or not _COLUMN.fullmatch(one.column):
        raise InvalidInput(
            f"{where}.column: must be 1 to 60 of a-z 0-9 _ and begin with a letter", field=f"{where}.column"
        )
    if one.type not in _TYPES:
        raise InvalidInput(f"{where}.type: must be one of {', '.join(_TYPES)}", field=f"{where}.type")
    return one
