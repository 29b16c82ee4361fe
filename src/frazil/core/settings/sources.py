"""Sources of settings: the sections of a file in either spelling, and the environment.

This module turns the input into one mapping of sections; the models validate the values.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from frazil.core.errors import InvalidSettings

SHORT = {
    "FRAZIL_TOKEN": "FRAZIL_CLIENT__TOKEN",
    "FRAZIL_TOKEN_FILE": "FRAZIL_CLIENT__TOKEN_FILE",
    "FRAZIL_CA": "FRAZIL_CLIENT__CA",
}
"""Short names of variables."""
_TOKENS = (("client", "token"), ("client", "token_file"))
PREFIX = "FRAZIL_"
BETWEEN = "__"

WRAPPER = "storage"
WRAPPED = "iceberg_config"
WRAPPED_SECTIONS = ("catalog", "object_store", "wal", "writer", "reader")


@dataclass(slots=True)
class RawSettings:
    """Settings as given, with the caller's spelling of each key, which messages use."""

    source: str
    values: dict[str, Any]
    spelled: dict[tuple[str, ...], str] = field(default_factory=dict)

    def spelling(self, place: tuple[str, ...]) -> str:
        for length in range(len(place), 0, -1):
            if place[:length] in self.spelled:
                return ".".join((self.spelled[place[:length]], *place[length:]))
        return ".".join(place) or "settings"


def unwrapped(values: Mapping[str, Any], source: str) -> RawSettings:
    """Accept `storage: {type: iceberg, iceberg_config: {…}}` as another spelling of the top-level sections."""
    given = RawSettings(source, dict(values))
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


def add_environment(given: RawSettings, environment: Mapping[str, str], model: type[BaseModel]) -> RawSettings:
    """Add FRAZIL_<SECTION>__<KEY> variables, which override the file. Empty variables are ignored; `null` unsets."""
    drops_token = True
    for variable, text in sorted(environment.items()):
        named = SHORT.get(variable, variable)
        if not named.startswith(PREFIX) or BETWEEN not in named or not text:
            continue
        place = _place(named, model)
        if place in _TOKENS and drops_token:
            drops_token = False  # either of the two replaces what the file has
            section = given.values.get("client")
            if isinstance(section, Mapping):
                given.values["client"] = {key: one for key, one in section.items() if ("client", key) not in _TOKENS}
        section = given.values
        for name in place[:-1]:
            inner = section.get(name)
            section[name] = dict(inner) if isinstance(inner, Mapping) else {}
            section = section[name]
        section[place[-1]] = None if text == "null" else text
        given.spelled[place] = variable
    return given


def explained(error: ValidationError, given: RawSettings, model: type[BaseModel]) -> str:
    """Describe each wrong key, in the caller's spelling, and the fix. Values are left out: they may be secrets."""
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
    """Return the setting that a variable names, or raise `InvalidSettings` that names the variable."""
    parts = variable.removeprefix(PREFIX).lower().split(BETWEEN)
    at: type[BaseModel] | None = model
    for depth, part in enumerate(parts):
        if at is None or part not in at.model_fields:
            known = [] if at is None else list(at.model_fields)
            names = [BETWEEN.join((*parts[:depth], name)).upper() for name in known]
            wrong = BETWEEN.join(parts[: depth + 1]).upper()
            message = f"{variable}: {_no_such(wrong, names, PREFIX)}"
            raise InvalidSettings(message, source=variable)
        kind = _plain(at.model_fields[part].annotation)
        if _model_in(kind) is not None:
            raise InvalidSettings(f"{variable}: {part} can be given in a file only", source=variable)
        if get_origin(kind) is dict and depth + 1 < len(parts):
            return (*parts[: depth + 1], _property_name(parts[depth + 1 :]))
        at = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if at is not None:
        raise InvalidSettings(f"{variable}: names a section; set one of its keys, {variable}__…", source=variable)
    return tuple(parts)


def _property_name(parts: list[str]) -> str:
    """Decode a property name like PyIceberg's variables: S3__ACCESS_KEY_ID is `s3.access-key-id`."""
    return ".".join(part.replace("_", "-") for part in parts)


def _model_at(model: type[BaseModel], place: tuple[str, ...]) -> type[BaseModel]:
    names = iter(place)
    for name in names:
        inner = _plain(model.model_fields[name].annotation)
        if (within := _model_in(inner)) is not None:
            next(names)  # a key that the user chooses
            inner = within
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return model


def _plain(kind: Any) -> Any:
    """Return the model of an optional section, as in `http.tls`; any other type as it is."""
    found = [one for one in get_args(kind) if one is not NoneType] if get_origin(kind) in (Union, UnionType) else []
    return found[0] if len(found) == 1 else kind


def _model_in(kind: Any) -> type[BaseModel] | None:
    """Return the model of a section whose keys the user chooses, as in `topics`."""
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
