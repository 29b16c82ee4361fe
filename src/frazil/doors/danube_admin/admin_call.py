"""One call of the admin service: how it is answered, and the rights that it needs."""

from __future__ import annotations

from typing import NamedTuple

from frazil.doors.admission import Rights
from frazil.doors.calls import Answer


class AdminCall(NamedTuple):
    """`topic` is the field with the topic whose owner must answer; None if every broker can."""

    answer: Answer
    needs: Rights
    topic: str | None = None
