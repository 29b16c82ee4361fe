"""Models of the admin door that repeat a value of the inside: a field that is added there is added here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic import BaseModel

from frazil.doors.http.admin.lake_models import PipelineStatus, TableSummary, TopicStatus
from frazil.lake.maintenance.table_inspection import TableOverview
from frazil.node.movers.status import PipelineProgress, TopicProgress


@pytest.mark.parametrize(
    ("model", "inside", "added"),
    [
        (TopicStatus, TopicProgress, set()),
        (PipelineStatus, PipelineProgress, {"next"}),
        (TableSummary, TableOverview, set()),
    ],
)
def test_a_model_has_the_fields_of_what_it_repeats(model: type[BaseModel], inside: Any, added: set[str]) -> None:
    assert set(model.model_fields) == {field.name for field in fields(inside)} | added
