"""Serialize errors between processes: `as_dict` on one side, the same class with the same fields on the other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from frazil.core import errors
from frazil.core.errors import FrazilError

_BY_CODE = {cls.code: cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, FrazilError)}


def from_dict(described: Mapping[str, Any]) -> FrazilError:
    """Rebuild the error; a code that this version does not know becomes a plain `FrazilError`."""
    cls = _BY_CODE.get(str(described.get("error")), FrazilError)
    fields = {name: value for name, value in described.items() if name not in ("error", "message")}
    made = cls.__new__(cls)
    FrazilError.__init__(made, str(described.get("message", "an error without a message")), **fields)
    return made
