"""The command line beside a real `frazil serve`: the same answers as from the folder alone, and what a server adds."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import frazil
from frazil.cli.main import main
from frazil.cli.target.server import Server as Asked
from frazil.client.connection import Connection
from frazil.client.query import run_query
from frazil.core.clock import SystemClock
from frazil.core.errors import ServerUnreachable
from frazil.log.retention.guards import RetentionHold
from parts.danube import Server, serving
from parts.moving import HandMover
from parts.processes import free_port, pause

pytestmark = pytest.mark.timeout(180)

MOVED = "/shop/orders"
TYPED = "/shop/readings"
COLUMNS = [{"name": "sensor", "type": "string", "nullable": False}, {"name": "celsius", "type": "double"}]
BOTH = (
    ("topics", "list"),
    ("topics", "describe", MOVED),
    ("topics", "describe", TYPED),
    ("topics", "describe", "/shop/nothing"),
    ("topics", "retention", TYPED),
    ("consume", MOVED, "-n", "3"),
    ("consume", MOVED, "-o", "28"),
    ("consume", TYPED),
    ("consume", "/shop/nothing"),
    ("table", "list"),
    ("table", "describe", MOVED),
    ("table", "describe", "/shop/nothing"),
    ("pipeline", "status"),
    ("verify", MOVED),
    ("verify", "/shop/nothing"),
    ("table", "compact", "--dry-run"),
    ("table", "expire", MOVED, "--older-than", "1ms"),
)
"""Verbs that ask a server as well as a folder, and give the same."""
FAST = {"topics", "consume", "pipeline"}
"""Which are asked by the server's name, too."""
PASSING = {"lag_ms", "lag_bytes", "bytes", "learnt_us", "table_time_us", "owner"}
"""What passes with time, and sizes: files have room behind their frames, and a clean end writes a mark. The owner is
known only while a server runs."""

Run = Callable[..., Any]


class Cli:
    def __init__(self, captured: pytest.CaptureFixture[bytes]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str, code: int = 0) -> str:
        got, out, error = self.tried(*arguments)
        assert got == code, error
        return out or error

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def tried(self, *arguments: str) -> tuple[int, str, str]:
        self._captured.readouterr()
        got = main(list(arguments))
        out, error = self._captured.readouterr()
        assert b"Traceback" not in error
        return got, out.decode(), error.decode()


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("FRAZIL_DATA", "FRAZIL_CONFIG", "FRAZIL_SERVER"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capsysbinary)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one topic of which the table has 30 of 40 rows."""
    folder = tmp_path_factory.mktemp("served")
    settings = frazil.Settings.of_folder(folder / "data")
    with frazil.open(settings) as storage:
        topic = storage.topic(MOVED)
        topic.publish_many([f"m{number}" for number in range(30)])
        HandMover(settings).move(topic)
        topic.publish_many([f"m{number}" for number in range(30, 40)])
    rules = {"redelivery_delay_ms": 20, "redeliveries_max": 0, "poison": "dead_letter", "ack_timeout_ms": 60_000}
    with serving(folder, **rules) as found:
        yield found
        assert "Traceback" not in found.log()


def test_every_verb_says_the_same_by_a_server_and_on_the_folder_alone(cli: Cli, tmp_path: Path) -> None:
    settings = frazil.Settings.of_folder(tmp_path / "data")
    with frazil.open(settings) as storage:
        topic = storage.topic(MOVED)
        topic.publish_many([f"m{number}" for number in range(30)])
        HandMover(settings).move(topic)
    columns = tmp_path / "columns.json"
    columns.write_text(json.dumps(COLUMNS))
    folder = ("--data", str(tmp_path / "data"))
    with serving(tmp_path) as running:
        made = cli.json("topics", "create", TYPED, "--schema", str(columns), "--retention-age", "7d", *folder)
        assert (made["topic"], made["typed"]) == (TYPED, True)
        cli("produce", MOVED, "later", *folder)
        cli("produce", TYPED, '{"sensor": "a", "celsius": 3.5}', "--server", running.http)
        by_folder = [told(cli, verb, *folder) for verb in BOTH]
        by_name = [told(cli, verb, "--server", running.http) if verb[0] in FAST else None for verb in BOTH]
        assert running.stop() == 0
    alone = [told(cli, verb, *folder) for verb in BOTH]
    for verb, first, second, third in zip(BOTH, by_folder, by_name, alone, strict=True):
        assert (verb, first) == (verb, third)
        assert second is None or (verb, second) == (verb, third)
    codes = [code for code, _ in alone]
    wrong = ("table", "expire", MOVED, "--older-than", "1ms")
    assert codes == [2 if verb == wrong else 3 if "/shop/nothing" in verb else 0 for verb in BOTH]


def told(cli: Cli, verb: tuple[str, ...], *where: str) -> tuple[int, Any]:
    """The answer as scripts get it."""
    code, out, error = cli.tried(*verb, *where, "--json")
    lines = [json.loads(line) for line in (out or error).splitlines()]
    return code, [without(line) for line in lines]


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without(one) for name, one in value.items() if name not in PASSING}
    return [without(one) for one in value] if isinstance(value, list) else value


# --- finding it


def test_what_is_given_stands_above_the_environment(cli: Cli, server: Server, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FRAZIL_SERVER", server.http)
    assert MOVED in [one["topic"] for one in cli.json("topics", "list")]
    assert cli.json("topics", "list", "--data", str(tmp_path)) == []
    monkeypatch.setenv("FRAZIL_SERVER", "http://127.0.0.1:1")
    assert cli.json("topics", "list", "--server", server.http) != []
    assert "127.0.0.1:1" in cli("topics", "list", code=7)


def test_a_server_that_was_killed_is_not_believed_in(cli: Cli, tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        running.kill()
        assert (tmp_path / "data" / "~serve").exists()
        folder = ("--data", str(tmp_path / "data"))
        assert cli.json("topics", "list", *folder) == []
        assert "frazil serve" in cli("subscriptions", "list", *folder, code=7)
        cli("produce", MOVED, "tea", *folder)


def test_what_is_no_address_or_no_frazil_is_said_so(cli: Cli, server: Server) -> None:
    for bad in ("localhost:6680", "grpc://127.0.0.1:1", "http://", "http://[::1", "http://host:port"):
        assert "http://host:port" in cli("topics", "list", "--server", bad, code=2)
    strange = cli("topics", "list", "--server", f"{server.http}/elsewhere", code=1)
    assert "no Frazil" in strange
    told = cli.json("topics", "list", "--server", "http://127.0.0.1:1", code=7)
    assert (told["error"], told["address"]) == ("server_unreachable", "http://127.0.0.1:1")


def test_errors_of_the_server_are_those_of_the_library(server: Server) -> None:
    with pytest.raises(frazil.TopicNotFound) as missing:
        Asked(server.http).get("/v1/topics/shop/nothing")
    assert missing.value.topic == "/shop/nothing"
    with pytest.raises(ServerUnreachable):
        Asked(f"http://127.0.0.1:{free_port()}").ready()


def test_files_are_left_to_their_owner(cli: Cli, server: Server) -> None:
    error = cli("log", "repair", MOVED, "--yes", "--data", str(server.folder / "data"), code=6)
    assert server.process is not None
    assert f"process {server.process.pid}" in error


def test_a_server_makes_topics_of_any_columns_that_a_folder_does(cli: Cli, server: Server, tmp_path: Path) -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.field("x", pa.float32())))])
    schema = pa.schema(
        [("s", inner), ("m", pa.map_(pa.string(), inner)), ("l", pa.large_string()), ("t", pa.time64("us"))],
        metadata={"of": "somebody"},
    )
    path = tmp_path / "columns.arrow"
    path.write_bytes(schema.serialize().to_pybytes())
    made = []
    for where in (("--server", server.http), ("--data", str(tmp_path / "data"))):
        assert cli.json("topics", "create", "/shop/nested", "--schema", str(path), *where)["typed"]
        made.append(cli.json("topics", "describe", "/shop/nested", *where)["schema"])
    assert made[0] == made[1]
    with frazil.connect(server.flight) as storage:
        assert storage.topic("/shop/nested").schema == schema.remove_metadata()
    wrong = [{"name": "a", "type": "int64"}]
    with pytest.raises(frazil.InvalidInput, match="arrow_schema: it says the same as schema"):
        Asked(server.http).post("/v1/topics", {"topic": "/shop/two", "schema": wrong, "arrow_schema": "AAAA"})
    with pytest.raises(frazil.SchemaMismatch, match="arrow_schema: is not Arrow's form"):
        Asked(server.http).post("/v1/topics", {"topic": "/shop/two", "arrow_schema": "AAAA"})


def test_files_of_a_server_are_checked_by_it(cli: Cli, server: Server) -> None:
    by_name = cli.json("log", "check", "--server", server.http)
    assert by_name == cli.json("log", "check", "--data", str(server.folder / "data"))
    assert {one["topic"]: one["state"] for one in by_name}[MOVED] == "ok"
    assert cli("log", "check", MOVED, "--server", server.http).split()[-6:-3] == [MOVED, "ok", "1"]
    assert "no topic /shop/nothing" in cli("log", "check", "/shop/nothing", "--server", server.http, code=3)


def test_what_a_server_can_not_do_is_refused_with_the_way_that_leads_there(cli: Cli, server: Server) -> None:
    error = cli("log", "repair", MOVED, "--yes", "--server", server.http, code=2)
    assert f"stop it, run `frazil log repair {MOVED} --data FOLDER` on its host, and start it again" in error
    (segment,) = (server.folder / "data" / "log" / "shop" / "orders").glob("*.wal")
    assert "on the host that has it" in cli("log", "inspect", str(segment), "--server", server.http, code=2)
    assert cli.json("log", "inspect", str(segment))["topic"] == MOVED
    error = cli("table", "compact", "--master", "local[1]", "--server", server.http, code=2)
    assert "leave --master out" in error


@pytest.mark.parametrize(
    "query",
    [
        "select _offset, decode(_payload) as text, _append_time from shop.orders where _offset >= 28 order by 1",
        "select 'a'::enum('a', 'b') as letter, 1.5::decimal(9, 2) as amount, {'x': [1, 2]} as inner",
        "select decode(_payload)::int as n from shop.orders",
    ],
)
def test_a_question_has_the_same_answer_from_a_server(cli: Cli, server: Server, query: str) -> None:
    folder = ("--data", str(server.folder / "data"))
    by_name = cli.tried("sql", query, "--server", server.http, "--json")
    assert by_name == cli.tried("sql", query, *folder, "--json")
    assert by_name[0] == (2 if "::int " in query else 0)


def test_a_question_to_a_server_sees_topics_and_none_of_its_files(cli: Cli, server: Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("of the host")
    query = f"select * from shop.orders, read_text('{secret}')"
    assert "read_text is not allowed" in cli("sql", query, "--server", server.http, code=2)
    assert "of the host" in cli("sql", f"select content from read_text('{secret}')", "--data", str(tmp_path))
    given = ("--snapshot", "1", "--server", server.http)
    assert "has no snapshot 1" in cli("sql", "select * from shop.orders", *given, code=2)


def test_doctor_asks_the_server_how_it_is(cli: Cli, server: Server) -> None:
    found = {one["name"]: one for one in cli.json("doctor", "--data", str(server.folder / "data"))}
    assert found["server"]["state"] == "ok"
    assert server.http in found["server"]["text"]
    away = cli.tried("doctor", "--server", "http://127.0.0.1:1", "--data", str(server.folder / "data"), "--json")
    assert away[0] == 1
    assert json.loads(away[1])[-1]["state"] == "fail"


# --- what only a server has


def test_subscriptions_are_listed_set_elsewhere_and_deleted(cli: Cli, server: Server) -> None:
    where, topic = ("--server", server.http), "/clients/orders"
    with (
        frazil.connect(server.flight) as storage,
        storage.topic(topic).subscribe("odd/name [x]", consumer="anna") as one,
    ):
        storage.topic(topic).publish_many(["a", "b", "c"])
        first = next(one)
        (found,) = cli.json("subscriptions", "list", topic, *where)
        assert (found["subscription"], found["lag"], found["connected"]) == ("odd/name [x]", 3, 1)
        assert "odd/name [x]" in cli("subscriptions", "list", *where)
        assert cli.json("subscriptions", "describe", topic, "odd/name [x]", *where)["topic"] == topic
        (consumer,) = cli.json("consumers", "list", topic, "odd/name [x]", *where)
        assert consumer["consumer"] == "anna"
        everybody = cli.json("consumers", "list", *where)  # others have left theirs on this server
        assert [each for each in everybody if each["topic"] == topic] == [consumer]
        one.ack(first.offset)
        moved = cli.json("subscriptions", "reset", topic, "odd/name [x]", "--to", "2", "--yes", *where)
        assert moved["cursor"] == 2
        assert next(message.offset for message in one if message.offset == 2) == 2
    cli("subscriptions", "reset", topic, "odd/name [x]", "--to", "now", "--yes", *where, code=2)
    cli("subscriptions", "delete", topic, "odd/name [x]", *where, code=1)  # nobody there to confirm it
    in_use = cli("topics", "delete", topic, "--yes", *where, code=1)
    assert "--force" in in_use
    assert cli.json("subscriptions", "delete", topic, "odd/name [x]", "--yes", *where)["deleted"] is True
    cli("subscriptions", "describe", topic, "odd/name [x]", *where, code=3)
    assert cli.json("subscriptions", "list", topic, *where) == []
    cli("topics", "delete", topic, "--yes", "--force", *where)
    cli("topics", "describe", topic, *where, code=3)


def test_dead_letters_are_listed_and_published_again(cli: Cli, server: Server) -> None:
    where, topic = ("--server", server.http), "/clients/poison"
    with frazil.connect(server.flight) as storage, storage.topic(topic).subscribe("s") as one:
        storage.topic(topic).publish_many(["good", "bad \x1b[2J"])
        one.ack(next(one).offset)
        one.nack(next(one).offset, reason="cold")
        found = waited(lambda: cli.json("dead-letters", "list", topic, *where))
        assert [(each["original_offset"], each["reason"]) for each in found] == [(1, "cold")]
        shown = cli("dead-letters", "list", topic, *where)
        assert "\\x1b[2J" in shown
        assert "\x1b[2J" not in shown
        cli("dead-letters", "replay", topic, "--yes", *where, code=2)
        assert cli.json("dead-letters", "replay", topic, "--all", "--yes", *where)["replayed"] == 1
        assert cli.json("dead-letters", "replay", topic, "--offset", "0", "--yes", *where)["replayed"] == 1
        assert [next(one).offset for _ in range(2)] == [2, 3]


def test_schemas_are_registered_checked_shown_and_given_to_a_topic(cli: Cli, server: Server, tmp_path: Path) -> None:
    where = ("--server", server.http)
    first, wider = tmp_path / "first.avsc", tmp_path / "wider.avsc"
    first.write_text('{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}')
    wider.write_text(
        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}'
    )
    made = cli.json("schemas", "register", "shop/order", str(first), "--type", "avro", *where)
    assert (made["version"], made["is_new_version"]) == (1, True)
    assert (
        cli.json("schemas", "register", "shop/order", str(first), "--type", "avro", *where)["is_new_version"] is False
    )
    refused = cli.json("schemas", "check", "shop/order", str(wider), "--type", "avro", *where, code=1)
    assert refused["compatible"] is False
    cli("schemas", "register", "shop/order", str(wider), "--type", "avro", *where, code=2)
    assert cli.json("schemas", "set-mode", "shop/order", "none", *where)["compatibility_mode"] == "none"
    assert cli.json("schemas", "check", "shop/order", str(wider), "--type", "avro", *where)["compatible"] is True
    assert cli.json("schemas", "register", "shop/order", str(wider), "--type", "avro", *where)["version"] == 2
    assert [one["version"] for one in cli.json("schemas", "versions", "shop/order", *where)] == [1, 2]
    assert json.loads(cli("schemas", "show", "shop/order", "--version", "1", *where)) == json.loads(first.read_text())
    assert [one["subject"] for one in cli.json("schemas", "list", *where)] == ["shop/order"]
    given = cli.json("schemas", "of-topic", MOVED, "--subject", "shop/order", "--policy", "enforce", *where)
    assert (given["subject"], given["validation_policy"]) == ("shop/order", "enforce")
    assert cli.json("schemas", "delete", "shop/order", "2", "--yes", *where)["deleted"] is True
    cli("schemas", "show", "shop/order", "--version", "2", *where, code=3)
    cli("schemas", "show", "nothing", *where, code=3)


def test_the_commands_of_the_page_on_operating_run(cli: Cli, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    commands = page[page.index("frazil topics create /shop/orders\n") :].partition("```")[0].splitlines()
    assert len(commands) > 5
    monkeypatch.setenv("FRAZIL_SERVER", server.http)
    for command in commands:
        program, *words = shlex.split(command.replace(MOVED, "/page/orders"))
        assert program == "frazil"
        if words[:2] == ["subscriptions", "list"]:
            with frazil.connect(server.flight) as storage:
                storage.topic("/page/orders").subscribe("cooks").close()
        cli(*words)


def waited(look: Callable[[], Any]) -> Any:
    for _ in range(600):
        found = look()
        if found:
            return found
        pause(0.05)
    raise AssertionError("it never came")


def test_what_holds_rows_back_is_shown_with_its_time(server: Server, cli: Cli) -> None:
    """A topic that is kept until it is acknowledged, and has nobody who would."""
    name, asked = "/held/back", Asked(server.http)
    cli("topics", "create", name, "--retain-until-acked", "--server", server.http)
    before_us = SystemClock().now_us()
    with frazil.connect(server.flight) as storage:
        topic = storage.topic(name)
        topic.publish(b"one")
        held = waited(lambda: topic.stats().held_back)
    assert held == RetentionHold("subscriptions", 0, 0, None)
    assert before_us <= held.since_us <= SystemClock().now_us()
    assert asked.get("/v1/topics" + name)["held_back"] == asdict(held)
    assert cli.json("topics", "describe", name, "--server", server.http)["held_back"] == asdict(held)
    assert re.search(
        r"held back by: +subscriptions since .*, rows from offset 0 on",
        cli("topics", "describe", name, "--server", server.http),
    )
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert re.search(r'frazil_topic_held_back_seconds\{guard="subscriptions",topic="/held/back"\} \d', text)


# --- real processes: pipes and signals


def test_a_proof_is_ended_on_the_server_by_ctrl_c(server: Server) -> None:
    jobs = Asked(server.http)
    with started("verify", "--server", server.http) as verb:
        (job,) = waited(lambda: [one for one in jobs.all("/v1/verify") if one["ended_us"] is None])
        verb.send_signal(signal.SIGINT)
        assert verb.wait(30) == 130
    assert jobs.get(f"/v1/verify/{job['id']}")["state"] == "cancelled"


def test_a_question_ends_on_the_server_with_whoever_asked(server: Server) -> None:
    assert server.process is not None
    owner = psutil.Process(server.process.pid)

    def queries() -> list[psutil.Process]:
        return [one for one in owner.children() if "sql" in one.cmdline()]

    with started(
        "sql", "select sum(a.range * b.range) from range(1000000000) a, range(1000000000) b", "--server", server.http
    ) as verb:
        (query,) = waited(queries)
        assert not [word for word in query.cmdline() if "range" in word]  # every user of the host can read it
        verb.kill()
        verb.wait(30)
    query.wait(30)
    assert waited(lambda: not queries())


def test_a_question_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    """Neither one that computes, nor one whose caller does not read; publishers go on."""
    limited = Server(tmp_path, others={"flight": {"port": free_port(), "query_seconds_max": 5}})
    limited.start()
    assert limited.process is not None
    owner = psutil.Process(limited.process.pid)

    def are_ended() -> bool:
        return not any(is_query(one) for one in owner.children())

    def is_query(child: psutil.Process) -> bool:
        try:
            return "sql" in child.cmdline()
        except psutil.NoSuchProcess:  # it has ended, and may still be listed
            return False

    def read_late(connection: Connection) -> None:
        _, batches = run_query(connection, "select repeat('x', 1000) as x from range(10000000)")
        assert waited(are_ended)
        list(batches)

    try:
        with frazil.connect(limited.flight) as client:
            assert client.topic("/shop/orders").publish(b"one") == 0
            with pytest.raises(frazil.QueryTooLong) as computing:
                run_query(
                    client._connection, "select sum(a.range * b.range) from range(1000000000) a, range(1000000000) b"
                )
            assert waited(are_ended)
            with pytest.raises(frazil.QueryTooLong) as waiting:
                read_late(client._connection)
            for error in (computing.value, waiting.value):
                assert (error.code, error.as_dict()["limit_seconds"]) == ("query_too_long", 5)
                assert "flight.query_seconds_max" in error.message
            assert client.topic("/shop/orders").publish(b"two") == 1
    finally:
        limited.kill()


def test_maintenance_is_ended_on_the_server_by_ctrl_c(server: Server) -> None:
    jobs = Asked(server.http)
    with started("table", "orphans", "--dry-run", "--server", server.http) as verb:
        (job,) = waited(lambda: [one for one in jobs.all("/v1/maintenance") if one["ended_us"] is None])
        verb.send_signal(signal.SIGINT)
        assert verb.wait(30) == 130
    found = jobs.get(f"/v1/maintenance/{job['id']}")
    assert (found["state"], found["verb"], found["dry_run"]) == ("cancelled", "orphans", True)


def test_lines_go_to_the_server_and_come_back_as_they_come(server: Server) -> None:
    with started("consume", "/pipes/lines", "--follow", "--server", server.http, made="/pipes/lines") as reader:
        with started("produce", "/pipes/lines", "--server", server.http) as writer:
            assert writer.stdin is not None
            assert reader.stdout is not None
            for line in (b"one\n", b"two\n"):
                writer.stdin.write(line)
                writer.stdin.flush()
                assert reader.stdout.readline() == line
            assert b"offsets 0 to 1" in writer.communicate(timeout=30)[0]
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 130


def started(*arguments: str, made: str | None = None) -> subprocess.Popen[bytes]:
    if made is not None:
        address = arguments[arguments.index("--server") + 1]
        Asked(address).post("/v1/topics", {"topic": made})
    return subprocess.Popen(
        [sys.executable, "-m", "frazil", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "FRAZIL_CONFIG": ""},
    )
