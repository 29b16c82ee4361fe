"""The command line as users run it: real processes, pipes and signals."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import frazil
from frazil.cli.main import main

TOPIC = "/default/orders"
DEADLINE_SECONDS = 30


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "FRAZIL_DATA": str(tmp_path / "data"), "FRAZIL_CONFIG": "", "PYTHONWARNINGS": "error"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from frazil.cli.main import run; run()", *arguments]


def frazil_run(
    environment: dict[str, str], *arguments: str, stdin: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        command(*arguments), input=stdin, capture_output=True, env=environment, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done


def test_what_goes_in_through_a_pipe_comes_out_through_a_pipe(environment: dict[str, str]) -> None:
    lines = b"".join(b"%d \xf0\x9f\x8d\xb5\n" % number for number in range(5_000))
    made = frazil_run(environment, "produce", TOPIC, "--json", stdin=lines)
    assert json.loads(made.stdout)["messages"] == 5_000
    assert frazil_run(environment, "consume", TOPIC).stdout == lines


def test_a_slow_pipe_is_published_line_by_line(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        command("produce", TOPIC), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"first\n")
        producer.stdin.flush()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while json.loads(frazil_run(environment, "topics", "list", "--json").stdout or b"[]") == [] or (
            json.loads(frazil_run(environment, "topics", "describe", TOPIC, "--json").stdout)["end"] < 1
        ):
            assert time.monotonic() < deadline, "the line was not published while the pipe stayed open"
        refused = frazil_run(environment, "produce", TOPIC, "x", code=6)
        assert f"process {producer.pid}" in refused.stderr.decode()
        out, _ = producer.communicate(timeout=DEADLINE_SECONDS)
    assert producer.returncode == 0
    assert b"at offset 0" in out


def test_a_reader_that_goes_away_is_no_error(environment: dict[str, str], tmp_path: Path) -> None:
    with frazil.open(tmp_path / "data") as storage:
        storage.topic(TOPIC).publish_many([bytes(1_000)] * 5_000)
    with subprocess.Popen(
        command("consume", TOPIC, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.wait(DEADLINE_SECONDS) == 0
        assert consumer.stderr.read() == b""


@pytest.mark.parametrize("verb", ["consume", "list"])
def test_a_reader_that_was_never_there_is_no_error_either(environment: dict[str, str], verb: str) -> None:
    frazil_run(environment, "produce", TOPIC, "x")
    arguments = command("consume", TOPIC) if verb == "consume" else command("topics", "list")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, env=environment, timeout=DEADLINE_SECONDS)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_are_no_failure(environment: dict[str, str], closed: str) -> None:
    """And no segment of the log gets the descriptor of one: what is printed must not end up in it."""
    script = f'exec "$@" {closed}'
    arguments = ["sh", "-c", script, "sh", *command("produce", TOPIC, "tea")]
    done = subprocess.run(arguments, capture_output=True, env=environment, timeout=DEADLINE_SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert frazil_run(environment, "consume", TOPIC).stdout == b"tea\n"


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_an_error_that_nobody_reads_keeps_its_code(environment: dict[str, str], how: str) -> None:
    arguments = command("topics", "describe", "/shop/nothing")
    if how == "closed":
        arguments = ["sh", "-c", 'exec "$@" 2>&-', "sh", *arguments]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=write, env=environment, timeout=DEADLINE_SECONDS)
    os.close(write)
    assert (done.returncode, done.stdout) == (3, b"")


def test_an_answer_that_cannot_be_written_is_told_in_one_line(environment: dict[str, str]) -> None:
    frazil_run(environment, "produce", TOPIC, "tea")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("topics", "list", "--json"), stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60
        )
    assert done.returncode == 1
    assert "No space left on device" in json.loads(done.stderr)["message"]


def test_following_shows_what_is_there_and_ends_at_ctrl_c_with_130(environment: dict[str, str]) -> None:
    frazil_run(environment, "produce", TOPIC, "tea")
    with subprocess.Popen(
        command("consume", TOPIC, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        ready, _, _ = select.select([consumer.stdout], [], [], DEADLINE_SECONDS)
        assert ready
        assert consumer.stdout.readline() == b"tea\n"
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(DEADLINE_SECONDS) == 130
        assert consumer.stderr.read() == b""


def test_deleting_asks_first(environment: dict[str, str]) -> None:
    frazil_run(environment, "produce", TOPIC, "tea")
    frazil_run(environment, "topics", "delete", TOPIC, stdin=b"n\n", code=1)
    frazil_run(environment, "topics", "delete", TOPIC, stdin=b"", code=1)
    assert frazil_run(environment, "consume", TOPIC).stdout == b"tea\n"
    frazil_run(environment, "topics", "delete", TOPIC, stdin=b"y\n")
    frazil_run(environment, "consume", TOPIC, code=3)


def test_a_folder_that_cannot_be_made_is_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = frazil_run(environment, "produce", TOPIC, "x", "--data", str(tmp_path / "file" / "data"), code=1)
    assert done.stderr.decode().startswith("error: ")
    assert done.stderr.count(b"\n") == 1


def test_broken_settings_name_the_key(environment: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("wal: {comitters: 3}")
    done = frazil_run(environment, "topics", "list", "--config", str(config), code=2)
    assert b"wal.comitters: no such setting" in done.stderr


@pytest.mark.parametrize(
    "verb",
    [
        "topics list", "topics describe", "topics create", "topics delete", "produce", "consume", "log inspect",
        "log check", "log repair", "doctor", "serve", "version",
    ],
)  # fmt: skip
def test_every_verb_takes_the_folder_the_settings_and_json(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--data", "--config", "--json"))
