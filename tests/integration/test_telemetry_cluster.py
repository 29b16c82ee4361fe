"""SQL and the verbs of telemetry at a broker that owns none of the topics: two `frazil serve` on one etcd."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select
from typing import Any

import httpx
import pyarrow as pa
import pytest

import frazil
from frazil.cli.main import main
from frazil.core.clock import SystemClock
from frazil.core.settings import load_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import RemoteOwner
from frazil.pipeline.move.mover import Mover
from frazil.telemetry.signals import Signal, request_schema
from frazil.testing.jobs import InProcessJobs
from parts.cluster_members import Member, started_members, until
from parts.etcd import etcd_server
from parts.movers import environment
from parts.otlp_requests import NOT_PROTOBUF, log_records, points, spans

pytestmark = pytest.mark.timeout(240)

LOGS = "/default.default/logs"
SPANS = 'select count(*) as n, count(distinct (_offset, _index)) as different from "default.default".traces'
AtB = Callable[..., Any]


class Cluster:
    """Broker `a` owns the topics of the tenant `default`, and `b` none."""

    def __init__(self, members: dict[str, Member]) -> None:
        self.a, self.b = members["a"], members["b"]

    def send(self, what: Signal, *requests: bytes) -> None:
        for request in requests:
            url, headers = f"{self.a.told['otlp_http']}/v1/{what.value}", {"content-type": "application/x-protobuf"}
            answer = httpx.post(url, content=request, headers=headers)
            assert answer.status_code == 200, answer.text

    def move(self) -> None:
        """Move all that is waiting at broker a, in this process."""
        settings, source = load_settings(self.a.config), RemoteOwner(self.a.flight)
        properties = catalog_properties(settings)
        tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
        mover = Mover(settings, source, tables, InProcessJobs(), SystemClock(), lambda _: None)
        try:
            ends = {str(info.topic): info.durable_end for info in source.logs()}
            moved: dict[str, int] = {}
            while moved != ends:
                report = mover.tick(all_of_it=True)
                assert [one.error for one in report.topics.values() if one.error is not None] == []
                moved = {name: one.table_end for name, one in report.topics.items()}
        finally:
            source.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("telemetry-cluster")
    sections = {
        "telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}},
        "catalog": {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"},
    }
    with etcd_server(folder / "etcd") as etcd, started_members(folder, etcd.endpoint, **sections) as members:
        found = Cluster(members)
        found.send(Signal.TRACES, *(spans(number + 1) for number in range(3)))
        found.send(Signal.LOGS, log_records(0))
        found.send(Signal.METRICS, points(0))
        yield found
        for one in members.values():
            assert "Traceback" not in one.log(), one.log()


@pytest.fixture
def at_b(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> AtB:
    def ask(*words: str, code: int = 0, where: tuple[str, ...] | None = None) -> Any:
        capsys.readouterr()
        found = main([*words, *(where or ("--server", cluster.b.http)), "--json"])
        told = capsys.readouterr()
        assert found == code, (told, cluster.b.log()[-3_000:])
        return [json.loads(line) for line in (told.err if code else told.out).splitlines()]

    return ask


def folder_of(member: Member) -> tuple[str, ...]:
    return "--data", str(member.folder / "data"), "--config", str(member.config)


def test_sql_at_any_broker_sees_moved_and_unmoved_rows_once(cluster: Cluster, at_b: AtB) -> None:
    def seen(where: tuple[str, ...] | None = None) -> int:
        (found,) = at_b("sql", SPANS, where=where)
        assert found["n"] == found["different"]
        return int(found["n"])

    before = seen()
    assert before >= 9
    cluster.move()
    assert seen() == before
    cluster.send(Signal.TRACES, spans(100))
    assert [seen(), seen(folder_of(cluster.b))] == [before + 3] * 2
    assert at_b("sql", "select count(*) as n from nowhere", code=2)[0]["table"] == "default.nowhere"


def test_a_topic_that_was_created_a_moment_ago_is_seen_at_every_broker(cluster: Cluster, at_b: AtB) -> None:
    with frazil.connect(cluster.a.flight) as client:
        for number in range(2):
            client.create_topic(f"/default/new{number}").publish("tea")
            assert at_b("sql", f"select count(*) as n from new{number}") == [{"n": 1}]


def test_traces_logs_and_metrics_are_shown(cluster: Cluster, at_b: AtB) -> None:
    trace_id = f"{1:032x}"
    assert trace_id in {one["trace_id"] for one in at_b("traces", "list")[0]}
    (shown,) = at_b("traces", "show", trace_id)
    assert sorted(one["name"] for one in shown["spans"]) == ["span 1.0", "span 1.1", "span 1.2"]
    assert {"record 0.0", "record 0.2"} <= {one["body"] for one in at_b("logs", "tail", "-n", "1000")}
    assert {one["metric"] for one in at_b("metrics", "list")[0]} == {"gauge 0", "sum 0"}


@pytest.mark.long
def test_records_are_followed_at_another_broker(cluster: Cluster) -> None:
    words = ["logs", "tail", "-f", "-n", "0", "--server", cluster.b.http, "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "frazil", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as follower:
        assert follower.stdout is not None
        seen: list[str] = []
        numbers = itertools.count(7_000)

        def follows() -> bool:
            cluster.send(Signal.LOGS, log_records(next(numbers), 1))
            return bool(select([follower.stdout], [], [], 0.05)[0])

        until(follows)
        while len(seen) < 3:
            cluster.send(Signal.LOGS, log_records(next(numbers), 1))
            seen.append(json.loads(follower.stdout.readline())["body"])
        follower.send_signal(signal.SIGINT)
        follower.wait(60)
    first = int(seen[0].split()[1].split(".")[0])
    assert seen == [f"record {first + number}.0" for number in range(3)]


def test_undecodable_requests_are_listed_and_replayed(cluster: Cluster, at_b: AtB) -> None:
    schema = request_schema(Signal.LOGS)
    with frazil.connect(cluster.b.flight) as client:
        bad = pa.RecordBatch.from_pylist([{"request": NOT_PROTOBUF, "items": 0}], schema=schema)
        client.topic(LOGS).publish_many(bad)
    unmoved = 'select count(*) as n from "default.default".logs__errors'
    assert at_b("sql", unmoved) == [{"n": 1}]
    cluster.move()
    assert at_b("sql", unmoved) == [{"n": 1}]
    ((error,),) = at_b("telemetry", "errors", "list", LOGS, where=folder_of(cluster.b))
    assert error["bytes"] == len(NOT_PROTOBUF)
    (replayed,) = at_b("telemetry", "errors", "replay", LOGS, where=folder_of(cluster.b))
    assert (replayed["requests"], replayed["still_undecoded"]) == (0, 1)


def test_tenants_are_administered_at_any_broker(cluster: Cluster, at_b: AtB) -> None:
    at_b("tenants", "create", "acme", where=("--server", cluster.a.http))
    until(lambda: "acme" in {one["tenant"] for one in at_b("tenants", "list")[0]})
    (changed,) = at_b("tenants", "limit", "acme", "--datasets", "2")
    assert changed["effective"]["limits"]["datasets"] == 2
    url, headers = f"{cluster.a.told['otlp_http']}/v1/traces", {"content-type": "application/x-protobuf"}

    def sent() -> bool:
        return httpx.post(url, content=spans(1), headers={**headers, "x-frazil-tenant": "acme"}).status_code == 200

    until(sent)
    assert at_b("sql", 'select count(*) as n from "acme.default".traces') == [{"n": 3}]
    (deleted,) = at_b("tenants", "delete", "acme", "--yes")
    assert deleted["done"]
    assert "acme" not in {one["tenant"] for one in at_b("tenants", "list")[0]}
    assert at_b("sql", 'select count(*) as n from "acme.default".traces', code=2)[0]["error"] == "invalid_input"


def test_verify_proves_the_topics_of_all_brokers(cluster: Cluster, at_b: AtB) -> None:
    cluster.move()
    with frazil.connect(cluster.b.flight) as client:
        client.create_topic("/default/own").publish("tea")
    (found,) = at_b("verify")
    assert found["proven"], found
    assert {"/default/own", LOGS, "/default.default/traces"} <= {one["topic"] for one in found["topics"]}
    ((proof,),) = [one["topics"] for one in at_b("verify", "/default.default/traces")]
    assert proof["proven"], proof
    assert proof["tables"]["traces"] >= 9


@pytest.mark.long
def test_a_query_is_refused_once_the_owner_is_dead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with etcd_server(tmp_path / "etcd") as etcd, started_members(tmp_path, etcd.endpoint) as members:
        with frazil.connect(members["a"].flight) as client:
            client.create_topic("/default/orders").publish("tea")
        asked = ["sql", "select count(*) as n from orders", "--server", members["b"].http, "--json"]
        assert main(asked) == 0
        assert json.loads(capsys.readouterr().out) == {"n": 1}
        members["a"].kill()
        assert main(asked) != 0
        assert json.loads(capsys.readouterr().err)["error"] == "topic_unavailable"

        def is_refused() -> bool:
            assert main(["verify", "--server", members["b"].http, "--json"]) == 1
            told = capsys.readouterr()
            return "the broker a is gone, and has 1 topic, which nobody can verify" in told.err

        until(is_refused)


@pytest.mark.long
def test_a_query_has_the_rights_of_its_caller_at_every_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(code: int, *words: str) -> Any:
        capsys.readouterr()
        found = main([*words, "--json"])
        out, err = capsys.readouterr()
        assert found == code, (out, err)
        return json.loads((err if code else out).splitlines()[-1])

    security = {"security": {"enabled": True}}
    with etcd_server(tmp_path / "etcd") as etcd, started_members(tmp_path, etcd.endpoint, **security) as members:
        at_a, at_b = folder_of(members["a"]), ("--server", members["b"].http)
        made = [("root", "admin", "*"), ("one", "reader", "/shop/*"), ("two", "reader", "/other/*")]
        keys = {
            name: told(0, "keys", "create", name, "--role", role, "--scope", scope, *at_a)["key"]
            for name, role, scope in made
        }
        with frazil.connect(members["a"].flight, token=keys["root"]) as client:
            client.create_topic("/shop/orders").publish("tea")
        asked = ("sql", "select count(*) as n from shop.orders")
        monkeypatch.setenv("FRAZIL_CLIENT__TOKEN", keys["one"])
        until(lambda: main([*asked, *at_b]) == 0)  # the other broker has heard of the key
        assert told(0, *asked, *at_b) == {"n": 1}
        monkeypatch.setenv("FRAZIL_CLIENT__TOKEN", keys["two"])
        assert told(2, *asked, *at_b)["table"] == "shop.orders"
        monkeypatch.delenv("FRAZIL_CLIENT__TOKEN")
        assert told(1, *asked, *folder_of(members["b"]))["error"] == "unauthenticated"
