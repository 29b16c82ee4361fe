"""Where settings come from beside the code: the sections of a file in either spelling, and the environment.

Everything here turns what was written into one mapping of sections; what the values mean is for the models to say.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from frazil.core.errors import InvalidSettings

PREFIX = "FRAZIL_"
BETWEEN = "__"

WRAPPER = "storage"
WRAPPED = "iceberg_config"
WRAPPED_SECTIONS = ("catalog", "object_store", "wal", "writer", "reader")


@dataclass(slots=True)
class Given:
    """Settings as they were given, and how whoever gave them spelled each: messages speak of that spelling."""

    source: str
    values: dict[str, Any]
    spelled: dict[tuple[str, ...], str] = field(default_factory=dict)

    def spelling(self, place: tuple[str, ...]) -> str:
        for length in range(len(place), 0, -1):
            if place[:length] in self.spelled:
                return ".".join((self.spelled[place[:length]], *place[length:]))
        return ".".join(place) or "settings"


def unwrapped(values: Mapping[str, Any], source: str) -> Given:
    """`storage: {type: iceberg, iceberg_config: {…}}` is another spelling of the sections at the top."""
    given = Given(source, dict(values))
    if WRAPPER not in given.values:
        return given
    storage = _mapping(given.values.pop(WRAPPER), source, WRAPPER)
    if storage.get("type") != "iceberg":
        raise InvalidSettings(f"{source}: storage.type: must be iceberg, the only storage there is", source=source)
    _refuse_unknown(storage, ("type", WRAPPED), source, WRAPPER)
    sections = _mapping(storage.get(WRAPPED) or {}, source, f"{WRAPPER}.{WRAPPED}")
    _refuse_unknown(sections, WRAPPED_SECTIONS, source, f"{WRAPPER}.{WRAPPED}")
    for name, section in sections.items():
        if name in given.values:
            raise InvalidSettings(
                f"{source}: {name} is given twice, at the top and as {WRAPPER}.{WRAPPED}.{name}; keep one of them",
                source=source,
            )
        given.values[name] = section
        given.spelled[(name,)] = f"{WRAPPER}.{WRAPPED}.{name}"
    return given


def add_environment(given: Given, environment: Mapping[str, str], model: type[BaseModel]) -> Given:
    """FRAZIL_<SECTION>__<KEY> stands above the file. An empty variable is as good as none; `null` is none."""
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or BETWEEN not in variable or not text:
            continue
        place = _place(variable, model)
        section = given.values
        for name in place[:-1]:
            inner = section.get(name)
            section[name] = dict(inner) if isinstance(inner, Mapping) else {}
            section = section[name]
        section[place[-1]] = None if text == "null" else text
        given.spelled[place] = variable
    return given


def explained(error: ValidationError, given: Given, model: type[BaseModel]) -> str:
    """Each key that is wrong, as it was spelled, and what to do. The values are left out: they may be secrets."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        place = tuple(str(part) for part in problem["loc"] if part != "[key]")
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = _no_such(place[-1], list(_model_at(model, place[:-1]).model_fields))
        elif problem["type"] in ("model_type", "model_attributes_type", "dict_type"):
            reason = "must be a section with keys of its own"
        lines.append(f"{given.spelling(place)}: {reason}")
    return f"{given.source}: " + "; ".join(lines)


def _place(variable: str, model: type[BaseModel]) -> tuple[str, ...]:
    """The setting that a variable names, or `InvalidSettings` that names the variable."""
    parts = variable.removeprefix(PREFIX).lower().split(BETWEEN)
    at: type[BaseModel] | None = model
    for depth, part in enumerate(parts):
        if at is None or part not in at.model_fields:
            known = [] if at is None else list(at.model_fields)
            names = [BETWEEN.join((*parts[:depth], name)).upper() for name in known]
            wrong = BETWEEN.join(parts[: depth + 1]).upper()
            message = f"{variable}: {_no_such(wrong, names, PREFIX)}"
            raise InvalidSettings(message, source=variable)
        kind = at.model_fields[part].annotation
        if _model_in(kind) is not None:
            raise InvalidSettings(f"{variable}: {part} can be given in a file only", source=variable)
        if get_origin(kind) is dict and depth + 1 < len(parts):
            return (*parts[: depth + 1], _property_name(parts[depth + 1 :]))
        at = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if at is not None:
        raise InvalidSettings(f"{variable}: names a section; set one of its keys, {variable}__…", source=variable)
    return tuple(parts)


def _property_name(parts: list[str]) -> str:
    """As PyIceberg's own variables: S3__ACCESS_KEY_ID is `s3.access-key-id`."""
    return ".".join(part.replace("_", "-") for part in parts)


def _model_at(model: type[BaseModel], place: tuple[str, ...]) -> type[BaseModel]:
    names = iter(place)
    for name in names:
        inner = model.model_fields[name].annotation
        if (within := _model_in(inner)) is not None:
            next(names)  # a key of the user's own
            inner = within
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return model


def _model_in(kind: Any) -> type[BaseModel] | None:
    """The model of a section whose keys are the user's own, as `topics` is."""
    inner = get_args(kind)[1] if get_origin(kind) is dict else None
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _mapping(value: Any, source: str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSettings(f"{source}: {key}: must be a section with keys of its own", source=source)
    return value


def _refuse_unknown(values: Mapping[str, Any], known: tuple[str, ...], source: str, where: str) -> None:
    for name in values:
        if name not in known:
            raise InvalidSettings(f"{source}: {where}.{name}: {_no_such(str(name), list(known))}", source=source)


def _no_such(name: str, known: list[str], prefix: str = "") -> str:
    return "no such setting; " + "".join(_advice(name, known, prefix))


def _advice(name: str, known: list[str], prefix: str) -> Iterator[str]:
    near = difflib.get_close_matches(name, known, 1)
    if near:
        yield f"did you mean {prefix}{near[0]}?"
    elif known:
        yield f"there are {', '.join(prefix + each for each in known)}"
    else:
        yield "remove it"
