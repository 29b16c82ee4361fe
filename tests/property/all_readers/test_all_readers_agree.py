"""Everyone reads the same rows: random columns with odd names, other engines at work, rows lost and accepted, topics
made again. Compared are a topic's reader, readers of the catalog alone, SQL, the Spark source, PyIceberg and DuckDB."""

from __future__ import annotations

import pytest
from agreement import check
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_columns import Table, tables
from topic_history import LOG_STEPS, LOSING_STEPS, OBJECT_STEPS, TABLE_STEPS, history_of

STEPS = st.lists(st.sampled_from(LOG_STEPS + OBJECT_STEPS + TABLE_STEPS + LOSING_STEPS), min_size=3, max_size=6)


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.timeout(3_600)
@settings(
    max_examples=settings().max_examples // 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink an example takes minutes
)
@given(kind=tables(), steps=STEPS, data=st.data())
def test_every_reader_has_the_same_rows(kind: Table, steps: list[str], data: st.DataObject) -> None:
    with history_of(kind) as history:
        for step in ["publish", "move", *steps]:
            history.do(step, data)
            check(history)
