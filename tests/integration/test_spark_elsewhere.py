"""The same pipeline on a cluster, behind Spark Connect and under `spark-submit`: the same rows, and no shared disk."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from connect_child import TOPICS
from topics import TIMES, Lake, ordered

import frazil
from parts.movers import (
    DEADLINE_SECONDS,
    SECRET,
    answer,
    assert_every_row_once,
    environment,
    make_place,
    publish,
    run,
    served,
)
from parts.spark import SPARK, SparkCluster

ROWS = 5_000

pytestmark = pytest.mark.timeout(600)


def test_executors_that_do_not_see_the_owners_disk_fetch_rows_from_it(
    spark_hosts: SparkCluster, one_executor: None, tmp_path: Path
) -> None:
    place = make_place(spark_hosts.hidden / tmp_path.name, tmp_path / "lake")
    publish(place.data, ROWS)
    with served(place, tmp_path / "serve.log") as owner:
        before = reads(owner["http"])
        done = run(place, "pipeline", "run", "--once", "--json", "--log-json", "--master", spark_hosts.master)
        assert answer(done)["rows"] == ROWS
        assert reads(owner["http"]) > before, "no rows were read through the owner"
    assert_every_row_once(place, ROWS)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(event["logger"] == "spark" for event in events), "Spark said nothing at all"
    assert SECRET not in done.stderr


def reads(http: str) -> float:
    with urllib.request.urlopen(f"{http}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("frazil_log_reads_total"))


@pytest.mark.long
def test_a_mover_that_owns_the_folder_opens_a_door_for_executors(
    spark_hosts: SparkCluster, one_executor: None, tmp_path: Path
) -> None:
    place = make_place(spark_hosts.hidden / tmp_path.name, tmp_path / "lake")
    publish(place.data, ROWS)
    assert answer(run(place, "pipeline", "run", "--once", "--json", "--master", spark_hosts.master))["rows"] == ROWS
    assert_every_row_once(place, ROWS)


def test_a_mover_with_no_data_folder_moves_an_owners_rows_by_spark_connect_and_shows_no_secret(
    connect: str, parts_folder: Path, tmp_path: Path
) -> None:
    place = make_place(tmp_path / "data", tmp_path / "lake")
    publish(place.data, ROWS)
    empty = tmp_path / "empty"
    empty.mkdir()
    with served(place, tmp_path / "serve.log") as owner:
        arguments = ("pipeline", "run", "--once", "--json", "--remote", connect, "--owner", owner["flight"])
        assert answer(run(place, *arguments, cwd=empty))["rows"] == ROWS
        status = answer(run(place, "pipeline", "status", "--json"))
    assert not list(empty.iterdir())
    assert status["mover"] == "stopped"
    assert [(one["table_end"], one["lag_rows"]) for one in status["topics"]] == [(ROWS, 0)]
    assert_every_row_once(place, ROWS)
    events = [path for path in (parts_folder / "connect" / "events").rglob("*") if path.is_file()]
    text = b"".join(path.read_bytes() for path in events)
    assert b"SparkListenerJobStart" in text
    assert b"SparkListenerConnectOperationStarted" in text, "the plan, with the tasks in it, was not told of"
    assert SECRET.encode() not in text
    assert SECRET not in (parts_folder / "connect" / "server.log").read_text(encoding="utf-8")


@pytest.mark.long
def test_results_of_statements_come_over_spark_connect(connect: str, tmp_path: Path) -> None:
    """In a process of its own: one process has either kind of session, not both."""
    child = Path(__file__).with_name("connect_child.py")
    words = [sys.executable, str(child), str(tmp_path), connect]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment())
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told["errors"]) == ["/shop/bad"]
    assert "CAST_INVALID_INPUT" in told["errors"]["/shop/bad"]
    lake = Lake(tmp_path, None, {})
    for topic in TOPICS:
        assert len(told["results"][topic]) > 5
        assert ordered(lake.rows(topic), TIMES) == told["results"][topic], topic


def test_an_owner_elsewhere_needs_a_catalog_that_is_named(tmp_path: Path) -> None:
    place = make_place(tmp_path / "data", tmp_path / "lake", catalog={})
    done = run(place, "pipeline", "run", "--once", "--owner", "grpc://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr.startswith("error: catalog.uri: with --owner it must be given")


def test_spark_submit_runs_the_pipeline_as_it_says(tmp_path: Path) -> None:
    place = make_place(tmp_path / "data", tmp_path / "lake")
    publish(place.data, ROWS)
    script = Path(frazil.__file__).with_name("__main__.py")
    words = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"]
    arguments = ["pipeline", "run", "--once", "--json", "--data", str(place.data), "--config", str(place.config)]
    done = subprocess.run(
        [str(SPARK / "bin" / "spark-submit"), *words, str(script), *arguments],
        env={**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows"] == ROWS
    assert_every_row_once(place, ROWS)
