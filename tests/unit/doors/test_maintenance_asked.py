"""What a caller asks of maintenance, as the words of the verb that does it."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.core.errors import InvalidInput
from frazil.doors.http.admin.jobs.models import NewMaintenance


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"verb": "compact"}, []),
        ({"verb": "compact", "topic": "/shop/orders", "dry_run": True}, ["/shop/orders", "--dry-run"]),
        (
            {"verb": "expire", "older_than_ms": 5, "keep": 2, "force": True},
            ["--older-than", "5ms", "--keep", "2", "--force"],
        ),
        ({"verb": "orphans", "older_than_ms": 90_000_000}, ["--older-than", "90000000ms"]),
        ({"verb": "maintain", "orphans": False}, ["--no-orphans"]),
    ],
)
def test_each_field_is_an_option(asked: dict[str, Any], words: list[str]) -> None:
    found = NewMaintenance.model_validate(asked)
    found.check()
    assert found.arguments() == words


@pytest.mark.parametrize(
    ("verb", "field", "value"),
    [("compact", "keep", 1), ("orphans", "force", True), ("maintain", "older_than_ms", 5), ("expire", "orphans", True)],
)
def test_a_field_of_another_verb_is_refused_by_its_name(verb: str, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{field}: {verb} does not take it"):
        NewMaintenance.model_validate({"verb": verb, field: value}).check()
