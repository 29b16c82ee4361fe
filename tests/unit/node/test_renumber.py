"""A log that went back behind its table is renumbered: the rows of both are kept, each readable once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

import frazil
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.cli.doctor import LOOKS
from frazil.cli.log import _table_warning
from frazil.cli.main import main
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.names import TopicName
from frazil.core.sequences import Sent
from frazil.core.settings import FlightSettings, Settings
from frazil.core.settings.broker import BrokerSettings
from frazil.doors.flight.door import flight_door
from frazil.doors.flight.topics import check_log
from frazil.lake.catalogs.opening import open_catalog
from frazil.lake.tables.topics import TableTopics
from frazil.log.folder.former import FormerLog
from frazil.log.repair.renumbering import BUILD_FOLDER
from frazil.log.repair.repair import repair
from frazil.log.topic_log import TopicLog
from frazil.meta.broker_keys import progress_key
from frazil.meta.opening import open_meta
from frazil.node.movers.status import pipeline_status
from frazil.node.movers.status_file import StatusFile, write_status
from frazil.node.renumber.renumber import renumber
from frazil.node.verify.proofs import prove
from frazil.pipeline.source.planning import Look
from frazil.pipeline.source.stream import StreamOffset
from parts.behind import (
    NEW,
    OLD,
    ORDERS,
    check_moved,
    check_whole,
    damaged,
    in_table,
    log_id,
    proof_of,
    publish,
    repaired,
    restored,
    settings_in,
    tick,
)

NAME = TopicName.parse(ORDERS)
GoesBack = Callable[[Settings, list[bytes]], None]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def files_of(settings: Settings) -> dict[str, bytes]:
    """All of the log folder but for what each owner writes."""
    folder, own = settings.log_folder, ("~owner", "~spare")
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in own}


def change_table(settings: Settings, change: Callable[[pa.Table], pa.Table]) -> None:
    """As another engine would."""
    table = open_catalog(settings).load_table(("shop", "orders"))
    table.overwrite(change(table.scan().to_arrow()).cast(table.schema().as_arrow()))


# --- the rows


@pytest.mark.parametrize(("goes_back", "count"), [(repaired, 0), (repaired, 8), (restored, 3), (restored, 5)])
def test_the_rows_of_log_and_table_are_kept_and_readers_cross(
    settings: Settings, goes_back: GoesBack, count: int
) -> None:
    new = NEW[:count]
    goes_back(settings, new)
    assert not proof_of(settings).proven
    done = renumber(settings, ORDERS)
    assert done.plan is not None
    assert (done.plan.cut, done.plan.table_end, done.plan.rows, done.handed_over) == (5, 10, count, True)
    check_whole(settings, [*OLD, *new])
    publish(settings, [b"later"])
    check_moved(settings, [*OLD, *new, b"later"])
    assert [one.rows for one in proof_of(settings).renumbered] == [count]
    assert renumber(settings, ORDERS).plan is None


def test_retention_removes_what_the_table_has_and_nothing_else(settings: Settings) -> None:
    restored(settings, NEW)
    renumber(settings, ORDERS)
    with frazil.open(settings) as storage:
        log = storage.topic(ORDERS).log
        storage.set_retention(ORDERS, frazil.RetentionSettings(age_ms=1))
        storage.maintain()
        assert (log.first_offset, log.durable_end) == (10, 18)
    check_moved(settings, [*OLD, *NEW])
    with frazil.open(settings) as storage:
        log = storage.topic(ORDERS).log
        storage.maintain()
        assert (log.first_offset, log.durable_end) == (18, 18)
    check_whole(settings, [*OLD, *NEW])


def test_a_log_that_goes_back_again_is_renumbered_again(settings: Settings, tmp_path: Path) -> None:
    assert settings.data is not None
    restored(settings, NEW[:3])
    renumber(settings, ORDERS)
    shutil.copytree(settings.data, tmp_path / "second")
    publish(settings, [b"lost 0", b"lost 1"])
    check_moved(settings, [*OLD, *NEW[:3], b"lost 0", b"lost 1"])
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "second", settings.data)
    publish(settings, [b"kept"])
    assert renumber(settings, ORDERS).handed_over
    check_moved(settings, [*OLD, *NEW[:3], b"lost 0", b"lost 1", b"kept"])
    proof = proof_of(settings)
    assert [(one.cut, one.table_end, one.rows) for one in proof.renumbered] == [(5, 10, 3), (13, 15, 1)]


def test_rows_of_several_schemas_and_segments_are_kept_as_they_are(settings: Settings, tmp_path: Path) -> None:
    narrow = pa.schema([pa.field("n", pa.int32()), pa.field("text", pa.string())])
    wide = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string()), pa.field("note", pa.string())])
    settings = settings.model_copy(update={"wal": settings.wal.model_copy(update={"max_file_size": 64 * 1024})})
    assert settings.data is not None

    def add(storage: frazil.Storage, schema: pa.Schema, numbers: range) -> None:
        for number in numbers:
            row = {"n": number, "text": f"{number} " * 4_000, **({"note": "x"} if "note" in schema.names else {})}
            storage.topic(ORDERS).publish_many(pa.RecordBatch.from_pylist([row], schema=schema))

    with frazil.open(settings) as storage:
        storage.topic(ORDERS, schema=narrow)
        add(storage, narrow, range(3))
    shutil.copytree(settings.data, tmp_path / "copy")
    with frazil.open(settings) as storage:
        add(storage, narrow, range(100, 104))
        assert tick(settings, storage).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "copy", settings.data)
    with frazil.open(settings) as storage:
        add(storage, narrow, range(200, 206))
        storage.change_schema(ORDERS, wide)
        add(storage, wide, range(300, 303))
    assert renumber(settings, ORDERS).handed_over
    with frazil.open(settings) as storage:
        assert len(storage.topic(ORDERS).log.segments) > 2
        assert tick(settings, storage).failures == 0
        rows = pa.Table.from_batches(list(storage.topic(ORDERS).read_batches("earliest")))
    numbers = [*range(3), *range(100, 104), *range(200, 206), *range(300, 303)]
    assert rows["n"].to_pylist() == numbers
    assert rows["_offset"].to_pylist() == list(range(len(numbers)))
    assert rows["note"].to_pylist() == [None] * 13 + ["x"] * 3
    assert proof_of(settings).problems == []


def test_partitions_of_one_table_are_renumbered_one_by_one(settings: Settings, tmp_path: Path) -> None:
    assert settings.data is not None
    names = [f"{ORDERS}-part-{number}" for number in range(2)]

    def add(storage: frazil.Storage, text: str) -> None:
        for name in names:
            storage.topic(name).publish_many([f"{text} of {name}"] * 3)

    with frazil.open(settings) as storage:
        storage.create_partitions(ORDERS, 2)
        add(storage, "shared")
    shutil.copytree(settings.data, tmp_path / "copy")
    with frazil.open(settings) as storage:
        add(storage, "lost")
        assert tick(settings, storage).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "copy", settings.data)
    with frazil.open(settings) as storage:
        add(storage, "new")
    assert renumber(settings, names[1]).handed_over
    with frazil.open(settings) as storage:
        assert {name: topic.error_code for name, topic in tick(settings, storage).topics.items()} == {
            names[0]: "table_ahead",
            names[1]: None,
        }
    assert renumber(settings, names[0]).handed_over
    with frazil.open(settings) as storage:
        assert tick(settings, storage).failures == 0
        for name in names:
            found = [message.payload.decode() for message in storage.topic(name).read("earliest")]
            assert found == [f"{text} of {name}" for text in ("shared", "lost", "new") for _ in range(3)]
    assert [proof.problems for proof in prove(settings, None, lambda _: lambda _: None)] == [[], []]


# --- who remembers the former log


def test_a_producer_that_wrote_since_is_known_and_others_are_not_taken_for_new(
    settings: Settings, tmp_path: Path
) -> None:
    assert settings.data is not None
    with frazil.open(settings) as storage:
        for sequence in range(2):
            storage.topic(ORDERS).publish_many([b"of p"], sent=Sent("p", 0, sequence))
            storage.topic(ORDERS).publish_many([b"of q"], sent=Sent("q", 0, sequence))
    shutil.copytree(settings.data, tmp_path / "copy")
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many([b"lost of q"], sent=Sent("q", 0, 2))
        assert tick(settings, storage).failures == 0
    shutil.rmtree(settings.data)
    shutil.copytree(tmp_path / "copy", settings.data)
    with frazil.open(settings) as storage:
        storage.topic(ORDERS).publish_many([b"new of p"], sent=Sent("p", 0, 2))
    renumber(settings, ORDERS)
    with frazil.open(settings) as storage:
        topic = storage.topic(ORDERS)
        assert topic.publish_many([b"new of p"], sent=Sent("p", 0, 2)).start == 5
        for sent in (Sent("p", 0, 1), Sent("q", 0, 0), Sent("q", 0, 2)):  # the table has the last, the log does not
            with pytest.raises(frazil.SequenceForgotten):
                topic.publish_many([b"again"], sent=sent)
        assert topic.publish_many([b"more of p"], sent=Sent("p", 0, 3)).start == 6
    check_moved(settings, [b"of p", b"of q", b"of p", b"of q", b"lost of q", b"new of p", b"more of p"])


def test_subscriptions_stay_and_go_on_at_the_cut(settings: Settings) -> None:
    restored(settings, NEW)
    broker_side = {"offset": 7, "acked": [[9, 12]], "incarnation": 3, "attempts": {"8": 2}, "sequence_number": 3}
    reader_side = {"offset": 12, "snapshot_id": 1, "file": "f"}
    behind = {"offset": 2, "acked": [[3, 4], [4, 7]], "incarnation": 4, "attempts": {"2": 1, "9": 1}}

    async def subscribe() -> None:
        with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
            broker = Broker(storage, meta, BrokerSettings(), SystemClock())
            await broker.start()
            await broker.make_known(ORDERS)
            for name in ("s", "behind"):
                await broker.subscribe(ORDERS, name, Kind.SHARED, "c")
            await broker.close()
            for name, value in (("s", broker_side), ("reader", reader_side), ("behind", behind)):
                meta.put_all({progress_key(name, NAME): json.dumps(value).encode()})

    async def cursors() -> dict[str, int | None]:
        with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
            broker = Broker(storage, meta, BrokerSettings(), SystemClock())
            await broker.start()
            found = {one.subscription: one.cursor for one in BrokerAdmin(broker).subscriptions(NAME)}
            await broker.close()
            return found

    asyncio.run(subscribe())
    planned = renumber(settings, ORDERS, dry_run=True).plan
    assert planned is not None
    assert [(one.subscription, one.offset) for one in planned.subscriptions] == [("reader", 12), ("s", 7)]
    renumber(settings, ORDERS)
    with contextlib.closing(open_meta(settings)) as meta:
        stored = {name: meta.get(progress_key(name, NAME)) for name in ("s", "reader", "behind")}
    values = {name: json.loads(entry.value) for name, entry in stored.items() if entry is not None}
    assert values["s"] == {"offset": 5, "acked": [], "attempts": {}}
    assert values["reader"] == {"offset": 5}
    assert values["behind"] == {"offset": 2, "acked": [[3, 4], [4, 5]], "attempts": {"2": 1}}
    assert asyncio.run(cursors()) == {"s": 5, "behind": 2}


def test_a_read_only_node_goes_on_and_an_unknown_log_is_refused(settings: Settings) -> None:
    restored(settings, NEW)
    former = log_id(settings)
    tables = TableTopics(settings)
    assert tables.find(NAME, former).end == 10
    renumber(settings, ORDERS)
    found = tables.find(NAME, former)
    assert (found.end, found.log_id) == (10, log_id(settings))
    with pytest.raises(frazil.TableRefused, match="holds another log"):
        tables.find(NAME, "another")


@pytest.mark.parametrize(("end", "goes_on"), [(4, True), (5, True), (6, False)])
def test_a_stream_of_spark_goes_on_below_the_cut_and_is_refused_above(end: int, goes_on: bool) -> None:
    key = (ORDERS, 0)
    formers = (FormerLog("first", 5, 10, 3, 0), FormerLog("second", 13, 15, 1, 0))
    look = cast(Look, SimpleNamespace(logs={key: SimpleNamespace(log_id="third", former=formers)}))
    offset = StreamOffset({key: end}, {key: 0}, {key: "first"}).renumbered(look)
    assert offset.logs[key] == ("third" if goes_on else "first")
    with contextlib.nullcontext() if goes_on else pytest.raises(frazil.InvalidInput, match="another log"):
        offset.check_logs(look, fail=True)


def test_a_client_opens_the_topic_again_and_a_row_in_flight_is_unknown(settings: Settings) -> None:
    restored(settings, NEW[:3])
    with frazil.open(settings) as storage, flight_door(storage, FlightSettings(port=0)) as door:
        address = door.address
        remote = frazil.connect(address, give_up_ms=20_000)
        topic = remote.topic(ORDERS)
        assert topic.publish(NEW[3]) == 8
        above = topic.read_batches(8, follow=True)
        assert next(above).column(0).to_pylist() == [8]
    renumber(settings, ORDERS)
    port = int(address.rpartition(":")[2])
    with remote, frazil.open(settings) as storage, flight_door(storage, FlightSettings(port=port)):
        with pytest.raises((frazil.TopicDiffers, frazil.OutcomeUnknown), match="renumbered"):
            topic.publish(b"refused")
        with pytest.raises(frazil.TopicDiffers, match="other offsets from 5 on"):
            next(above)
        assert remote.topic(ORDERS).publish(b"later") == 14
    check_moved(settings, [*OLD, *NEW[:4], b"later"])


@pytest.mark.parametrize(("offset", "error"), [(4, None), (5, None), (6, "TopicDiffers"), (None, "TopicDiffers")])
def test_a_reader_that_was_cut_off_below_the_cut_goes_on(offset: int | None, error: str | None) -> None:
    formers = (FormerLog("first", 5, 10, 3, 0), FormerLog("second", 13, 15, 1, 0))
    log = cast(TopicLog, SimpleNamespace(name=ORDERS, log_id="third", former=formers))
    check_log(log, "third", offset)
    with contextlib.nullcontext() if error is None else pytest.raises(getattr(frazil, error)):
        check_log(log, "first", offset)
    with pytest.raises(frazil.TopicNotFound):
        check_log(log, "another", offset)


def test_status_and_doctor_speak_no_more_of_it(settings: Settings) -> None:
    restored(settings, NEW)
    clock = SystemClock()
    with frazil.open(settings) as storage:
        report = tick(settings, storage)
        StatusFile(lambda told: write_status(settings, clock, "here", 1, told), clock).ticked(report)
    (topic,) = pipeline_status(settings, clock).topics
    assert topic.last_error is not None
    assert f"frazil log renumber {ORDERS}" in topic.last_error
    renumber(settings, ORDERS)
    (topic,) = pipeline_status(settings, clock).topics
    assert (topic.last_error, topic.table_end, topic.log_end) == (None, 10, 18)
    (finding,) = (look(settings) for look in LOOKS if look.__name__ == "_tables")
    assert finding.state == "ok"


# --- refusals: nothing is changed


def test_a_log_that_is_not_behind_is_left_alone(settings: Settings) -> None:
    publish(settings, OLD)
    assert renumber(settings, ORDERS).plan is None  # nothing was ever moved
    with frazil.open(settings) as storage:
        tick(settings, storage)
        storage.topic(ORDERS).publish(b"later")
    before = files_of(settings)
    assert renumber(settings, ORDERS).plan is None
    assert files_of(settings) == before
    with pytest.raises(frazil.TopicNotFound):
        renumber(settings, "/shop/none")


def test_it_needs_the_folder_for_itself(settings: Settings) -> None:
    restored(settings, NEW)
    with frazil.open(settings), pytest.raises(frazil.FolderInUse):
        renumber(settings, ORDERS)


def test_a_catalog_that_is_away_or_another_is_no_reason_to_guess(settings: Settings, tmp_path: Path) -> None:
    restored(settings, NEW)
    before = files_of(settings)
    (tmp_path / "lake").rename(tmp_path / "away")
    with pytest.raises(frazil.LakeUnavailable):
        renumber(settings, ORDERS)
    assert files_of(settings) == before


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows.filter(pa.compute.not_equal(rows["_offset"], 3)), "missing"),
        (lambda rows: _with_payload(rows, 3), "offsets 3 up to 4 of /shop/orders have other values"),
    ],
)
def test_a_table_that_another_engine_has_changed_is_refused(
    settings: Settings, change: Callable[[pa.Table], pa.Table], why: str
) -> None:
    restored(settings, NEW)
    change_table(settings, change)
    before, rows = files_of(settings), in_table(settings)
    with pytest.raises(frazil.TableRefused, match=why):
        renumber(settings, ORDERS)
    assert (files_of(settings), in_table(settings)) == (before, rows)


def _with_payload(rows: pa.Table, offset: int) -> pa.Table:
    payloads = [
        b"masked" if each == offset else payload
        for each, payload in zip(rows["_offset"].to_pylist(), rows["_payload"].to_pylist(), strict=True)
    ]
    index = rows.schema.get_field_index("_payload")
    return rows.set_column(index, rows.schema.field(index), pa.array(payloads, rows["_payload"].type))


def test_the_result_of_a_statement_cannot_be_compared_and_is_refused(settings: Settings) -> None:
    restored(settings, NEW)
    with open_catalog(settings).load_table(("shop", "orders")).transaction() as change:
        change.set_properties({"frazil.transformed": "true"})
    before = files_of(settings)
    with pytest.raises(frazil.TableRefused, match=r"rename shop\.orders"):
        renumber(settings, ORDERS)
    assert files_of(settings) == before


def test_a_full_disk_leaves_everything_as_it_was(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    restored(settings, NEW)
    before = files_of(settings)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("frazil.log.repair.renumber_build.SegmentWriter.append", no_room)
    with pytest.raises(frazil.DiskFull):
        renumber(settings, ORDERS)
    assert files_of(settings) == before


def test_a_repair_finishes_a_renumbering_that_was_cut_short(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames the topic's folder is missing: that is no reason to begin a new log."""
    restored(settings, NEW)
    rename = LocalDisk.rename

    def cut_short(disk: LocalDisk, source: Path, target: Path) -> None:
        if source.parent.name == BUILD_FOLDER:
            raise KeyboardInterrupt
        rename(disk, source, target)

    with monkeypatch.context() as patched:
        patched.setattr(LocalDisk, "rename", cut_short)
        with pytest.raises(KeyboardInterrupt):
            renumber(settings, ORDERS)
    assert main(["log", "repair", ORDERS, "--yes", "--data", str(settings.data)]) == 0
    assert not repair(settings, ORDERS).plan.steps
    assert renumber(settings, ORDERS).handed_over
    check_whole(settings, [*OLD, *NEW])


# --- the command


def test_a_repair_that_leaves_the_log_behind_names_the_next_step(settings: Settings) -> None:
    damaged(settings)
    warning = _table_warning(settings, repair(settings, ORDERS, dry_run=True))
    assert warning is not None
    assert f"next, run: frazil log renumber {ORDERS}" in warning


def test_the_command_plans_asks_and_does(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(settings, NEW[:3])
    config = tmp_path / "settings.yaml"
    lake = tmp_path / "lake"
    store = f"object_store: {{path: {lake}/warehouse}}"
    config.write_text(f"data: {settings.data}\ncatalog: {{uri: 'sqlite:///{lake}/catalog.db'}}\n{store}\n")
    verb, before = ["log", "renumber", ORDERS, "--config", str(config)], files_of(settings)
    assert main([*verb, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "would keep 5 rows that only the table has: offsets 5 up to 10" in planned
    assert "would renumber 3 rows that only the log has: offsets 5 up to 8 become 10 up to 13" in planned
    assert main([*verb, "--server", "http://127.0.0.1:1"]) == 2
    assert "stop it, run `frazil log renumber" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(verb) == 1
    assert "it was not confirmed" in capsys.readouterr().err
    assert files_of(settings) == before
    with frazil.open(settings):
        assert main([*verb, "--yes"]) == 6
    capsys.readouterr()
    assert main([*verb, "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["needed"], done["cut"], done["end"], done["rows_renumbered"]) == (True, 5, 13, 3)
    assert Path(done["kept_as"]).is_dir()
    check_moved(settings, [*OLD, *NEW[:3]])
    assert main([*verb, "--yes"]) == 0
    assert "there is nothing to renumber" in capsys.readouterr().out
