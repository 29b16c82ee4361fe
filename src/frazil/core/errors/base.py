"""Base classes of errors. `frazil.core.errors` draws the whole tree, with what each error asks of the caller."""

from __future__ import annotations

from typing import Any, ClassVar


class FrazilError(Exception):
    """The root of all errors; `fields` is for programs, the message is for people."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def as_dict(self) -> dict[str, Any]:
        return {"error": self.code, "message": self.message, **self.fields}


class InvalidInput(FrazilError):
    """The call itself is wrong; nothing was written."""

    code = "invalid_input"
