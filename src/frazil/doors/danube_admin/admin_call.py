"""One call of the admin service: how it is answered, and the rights that it needs."""

from __future__ import annotations

from typing import NamedTuple

from frazil.doors.admission import Rights
from frazil.doors.calls import Answer


class AdminCall(NamedTuple):
    answer: Answer
    needs: Rights
