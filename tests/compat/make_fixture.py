"""Make the data folder that later versions must open. Run by the version that is to be remembered, once:

    git worktree add /tmp/earlier COMMIT
    PYTHONPATH=/tmp/earlier/src:/tmp/earlier/tests .venv/bin/python tests/compat/make_fixture.py tests/compat/vN

It writes `data.tar.gz` (data folder, catalog, warehouse) and `expected.json` (all that the version saw in it). Of that
version's tests it needs `parts.in_process`, a mover without Spark. Modules that are not public and had other names in
earlier versions are looked for by all their names.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import struct
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from danube.client import DanubeClientBuilder
from danube.dispatch_strategy import DispatchStrategy
from observed import command, rows_of, sections, served_state, serving

import frazil
from frazil.core.clock import SystemClock
from parts.in_process import MoverHere

ORDERS, PRICES, CLICKS, LEDGER, TORN = "/shop/orders", "/shop/prices", "/shop/clicks", "/shop/ledger", "/ops/torn"
AVRO_1: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}
AVRO_2 = AVRO_1 | {"fields": [*AVRO_1["fields"], {"name": "count", "type": "int", "default": 1}]}
CLIENTS = (("till 1", "till"),)
BYTES_MAX = 300 * 1024


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="frazil-compat-") as made:
        folder = Path(made)
        (folder / "lake").mkdir()
        settings = frazil.Settings.model_validate(sections(folder))
        renumbered_log(folder, settings)
        log_and_tables(settings)
        with serving(folder) as doors:
            broker_records(doors)
        expected = observed(folder, settings)
        torn_tail(folder)
        write(folder, target, expected)


def renumbered_log(folder: Path, settings: frazil.Settings) -> None:
    """A log that was restored from a copy, behind its table, and renumbered."""
    data, copy = folder / "data", folder / "copy"
    with frazil.open(settings) as storage:
        storage.topic(LEDGER).publish_many([f"entry {number}" for number in range(6)])
    shutil.copytree(data, copy)
    with frazil.open(settings) as storage:
        storage.topic(LEDGER).publish_many([f"lost {number}" for number in range(4)])
        moved(settings, storage)
    shutil.rmtree(data)
    copy.rename(data)
    with frazil.open(settings) as storage:
        storage.topic(LEDGER).publish_many([f"other {number}" for number in range(3)])
    command(folder, "log", "renumber", LEDGER, "--yes")


def log_and_tables(settings: frazil.Settings) -> None:
    """Messages, numbered batches, typed rows in two schemas, partitions; some rows only in tables, some in logs."""
    opening = first_module("frazil.node.opening", "frazil.topics.opening")
    with opening.open_to_move(settings) as storage:
        orders = storage.create_topic(ORDERS, retention=frazil.RetentionSettings(bytes=80 * 1024))
        state = orders.open_producer("till 1", client="till")
        for first in range(0, 30, 5):
            payloads = [f"order {number} ".encode() * 500 for number in range(first, first + 5)]
            orders.publish_many(payloads, sent=frazil.Sent("till 1", state.epoch, first))
        orders.publish("tea", key="anna", attributes={"till": "2"})
        narrow = pa.schema([("item", pa.string()), ("cents", pa.int32())])
        prices = storage.create_topic(PRICES, schema=narrow)
        prices.publish_many(pa.record_batch([["tea", "milk"], pa.array([250, None], pa.int32())], schema=narrow))
        for number, part in enumerate(storage.create_partitions(CLICKS, 2)):
            part.publish_many([f"click {number}.{each}" for each in range(3)])
        moved(settings, storage)
        wide = pa.schema([("item", pa.string()), ("cents", pa.int64()), ("tags", pa.list_(pa.string()))])
        prices = storage.change_schema(PRICES, wide)
        prices.publish_many(pa.record_batch([["rice"], pa.array([2**40]), [["dry", "food"]]], schema=wide))
        tell_status(settings, moved(settings, storage))
        storage.topic(CLICKS + "-part-1").publish("click 1.3")
        orders.publish_many(["milk", "rice"], sent=frazil.Sent("till 1", state.epoch, 30))
        storage.topic(TORN).publish_many(["whole 0", "whole 1"])
        storage.maintain()


def moved(settings: frazil.Settings, storage: frazil.Storage) -> Any:
    report = MoverHere(settings, storage, clock=SystemClock()).tick()
    assert not report.failures, report
    return report


def tell_status(settings: frazil.Settings, report: Any) -> None:
    """What a mover of another host left behind when it stopped."""
    module, clock = first_module("frazil.node.movers.status_file", "frazil.pipeline.status_file"), SystemClock()
    status = module.StatusFile(lambda value: module.write_status(settings, clock, "another-host", 1, value), clock)
    status.ticked(report)
    status.stopped()


def first_module(*names: str) -> Any:
    """The first of these that this version has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"this version has none of {names}: add the name it has")


def broker_records(doors: dict[str, str]) -> None:
    """Namespaces, schemas, subscriptions with cursors, a redelivery, a dead letter."""
    with httpx.Client(base_url=doors["http"], timeout=30) as http:
        _ask(http, "post", "/v1/namespaces", {"namespace": "empty"})
        for schema in (AVRO_1, AVRO_2):
            body = {"schema_type": "avro", "definition": json.dumps(schema), "description": "an order"}
            _ask(http, "post", "/v1/schemas/order/versions", body)
        _ask(http, "put", "/v1/schemas/order", {"compatibility_mode": "full"})
        _ask(http, "put", f"/v1/topics{ORDERS}/schema", {"subject": "order", "validation_policy": "warn"})
        with frazil.connect(doors["flight"], producer="till 2") as storage:
            topic = storage.topic(ORDERS)
            topic.publish_many(["over Flight", "after it"])
            asyncio.run(danube_producers(doors["danube"]))
            subscribed(topic, http)
            acknowledged(topic, http)


async def danube_producers(address: str) -> None:
    """A producer of a topic with a log, and one of a topic without."""
    client = await DanubeClientBuilder().service_url(address).build()
    for topic, how in ((ORDERS, DispatchStrategy.RELIABLE), ("/ops/ticks", DispatchStrategy.NON_RELIABLE)):
        producer = client.new_producer().with_topic(topic).with_name("shop 1").with_dispatch_strategy(how).build()
        await producer.create()
        await producer.send(b"over gRPC", {"till": "3"})


def subscribed(topic: Any, http: httpx.Client) -> None:
    """Subscriptions at earlier offsets. They are set there while nobody is connected: each delivery counts."""
    policy = {"redeliveries_max": 0, "poison": "dead_letter", "redelivery_delay_ms": 1}
    for name, kind, consumer, offset in (("cooks", "shared", "kitchen", 10), ("strict", "exclusive", "judge", 33)):
        topic.subscribe(name, kind=kind, consumer=consumer).close()
        _until(http, name, lambda one: one["connected"] == 0)
        _ask(http, "post", f"/v1/topics{ORDERS}/subscriptions/{name}/reset", {"to": "offset", "offset": offset})
    _ask(http, "put", f"/v1/topics{ORDERS}/subscriptions/strict/policy", policy)


def acknowledged(topic: Any, http: httpx.Client) -> None:
    """`cooks` has done 10, 11 and 13 and has seen 12; `strict` gave up 33 and has done those behind it."""
    with topic.subscribe("cooks", kind="shared", consumer="kitchen") as cooks:
        taken = [next(cooks).offset for _ in range(4)]
        assert taken == [10, 11, 12, 13], taken
        cooks.ack(10, 11, 13)
        cooks.nack(12, delay_ms=3_600_000)
        _until(http, "cooks", lambda one: one["durable"] == 12 and one["resting"] == 1 and one["file"] is not None)
    with topic.subscribe("strict", kind="exclusive", consumer="judge") as strict:
        assert next(strict).offset == 33
        strict.nack(33, reason="it is sour")
        strict.ack(next(strict).offset, next(strict).offset)
        _until(http, "strict", lambda one: one["durable"] == one["end"])


def _until(http: httpx.Client, subscription: str, true: Any) -> None:
    pause = threading.Event()
    for _ in range(600):
        if true(http.get(f"/v1/topics{ORDERS}/subscriptions/{subscription}").json()):
            return
        pause.wait(0.05)
    raise AssertionError(http.get(f"/v1/topics{ORDERS}/subscriptions/{subscription}").text)


def _ask(http: httpx.Client, method: str, path: str, body: dict[str, Any]) -> None:
    answer = http.request(method, path, json=body)
    assert answer.is_success, f"{path}: {answer.text}"


def observed(folder: Path, settings: frazil.Settings) -> dict[str, Any]:
    """All that this version sees. It opens the folder twice, so what it records outlives a restart."""
    with serving(folder) as doors:
        served = served_state(doors["http"])
    with frazil.open(settings) as storage:
        rows = rows_of(storage)
        producers = {name: storage.topic(ORDERS).open_producer(name, client=client) for name, client in CLIENTS}
        states = {name: [one.epoch, one.next_sequence] for name, one in producers.items()}
        tables = {name: storage.topic(name).stats().first_offset for name in storage.topics()}
    proof = command(folder, "verify")
    assert proof["proven"], proof
    return {
        "version": frazil.__version__,
        "rows": rows,
        "served": served,
        "producers": states,
        "first": tables,
        "proof": {one["topic"]: one for one in proof["topics"]},
    }


def torn_tail(folder: Path) -> None:
    """A crash in the middle of a write: half a frame behind the last whole one."""
    path = sorted((folder / "data" / "log" / TORN[1:]).glob("*.wal"))[-1]
    data = bytearray(path.read_bytes())
    at = 0
    while data[at : at + 16].strip(b"\0"):
        _, length, _ = struct.unpack_from("<QII", data, at)
        at += 16 + length
    junk = struct.pack("<QII", 2, 800, 12345) + b"\xff\xff\xff\xff" + b"half a frame " * 8
    data[at : at + len(junk)] = junk
    path.write_bytes(data)


def write(folder: Path, target: Path, expected: dict[str, Any]) -> None:
    for name in ("frazil.yaml", "serve.log"):
        (folder / name).unlink()
    archive = target / "data.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
        for name in ("data", "lake"):
            tar.add(folder / name, name, filter=_nameless)
    assert archive.stat().st_size < BYTES_MAX, archive.stat().st_size
    text = json.dumps({"made_at": str(folder), **expected}, indent=1, sort_keys=True)
    (target / "expected.json").write_text(text + "\n", encoding="utf-8")
    print(f"{archive}: {archive.stat().st_size} bytes")


def _nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
