"""Where Spark runs, and by which address executors come back to the driver."""

from __future__ import annotations

import pytest

from frazil.core.offsets import OffsetRange
from frazil.lake.files.writer import TableFiles
from frazil.lake.tables.schema import TableName
from frazil.pipeline.move.outputs import Target
from frazil.pipeline.move.tasks import LogRange, RangeInput
from frazil.pipeline.spark.session import SparkPlace, driver_address, spark_place


def test_without_a_word_spark_runs_within() -> None:
    assert spark_place(environment={}) == SparkPlace("local[*]", None, elsewhere=False)
    assert spark_place("local[2]", environment={}) == SparkPlace("local[2]", None, elsewhere=False)


def test_a_cluster_or_a_server_is_elsewhere() -> None:
    assert spark_place("spark://a:7077", environment={}).elsewhere
    assert spark_place(None, "sc://a", environment={}) == SparkPlace(None, "sc://a", elsewhere=True)
    assert spark_place(environment={"SPARK_REMOTE": "sc://b"}) == SparkPlace(None, "sc://b", elsewhere=True)
    assert spark_place("local[1]", environment={"SPARK_REMOTE": "sc://b"}) == SparkPlace("local[1]", None)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "spark://127.0.0.1:7077", "spark://127.0.0.1:7077,other:7077", "k8s://https://127.0.0.1"],
)
def test_a_driver_beside_its_master_stays_on_loopback(master: str) -> None:
    assert driver_address(master, {}) == "127.0.0.1"


@pytest.mark.parametrize("master", ["yarn", "spark://no-such-host.invalid:7077", "spark://a:port"])
def test_what_cannot_be_found_out_is_left_to_spark(master: str) -> None:
    assert driver_address(master, {}) is None


def test_an_address_that_spark_was_given_is_not_touched() -> None:
    assert driver_address("spark://127.0.0.1:7077", {"SPARK_LOCAL_IP": "10.0.0.7"}) is None


def test_the_input_of_a_task_does_not_print_its_secrets() -> None:
    source = LogRange("/a/b", "id", 0, OffsetRange(0, 1), (), b"", None)
    work = RangeInput(source, (Target(TableName("a", "b"), TableFiles("{}", {"token": "a-s3cret"})),), 1)
    assert "a-s3cret" not in repr(work)
