"""Errors come back from their form as the same class, with the same message and fields."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from frazil.core import errors
from frazil.core.errors.codec import from_dict

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.FrazilError)]


def made(cls: type[errors.FrazilError]) -> errors.FrazilError:
    """One with whatever its arguments may be."""
    values: dict[str, Any] = {"int": 7, "str": "x", "str | None": "x", "int | None": 7, "list[str]": ["a", "b"]}
    values |= {"bool": True, "float": 0.5, "Mapping[str, str]": {"http": "http://127.0.0.1:1"}}
    given = {
        name: values[str(parameter.annotation)]
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name not in ("self", "fields")
    }
    return cls(**given)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_is_the_same_after_its_way(cls: type[errors.FrazilError]) -> None:
    sent = made(cls)
    came = from_dict(json.loads(json.dumps(sent.as_dict())))
    assert type(came) is cls
    assert (came.message, str(came), came.fields) == (sent.message, str(sent), sent.fields)
    for name, value in sent.fields.items():
        assert getattr(came, name) == value


def test_an_error_of_a_newer_version_is_told_with_what_is_known() -> None:
    came = from_dict({"error": "never_heard_of", "message": "the moon is full", "moon": "full"})
    assert type(came) is errors.FrazilError
    assert (str(came), came.moon) == ("the moon is full", "full")
    assert str(from_dict({})) == "an error without a message"
