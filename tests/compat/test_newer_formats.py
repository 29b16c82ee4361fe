"""What a newer version wrote is refused with the version and what to do; nothing of it is changed, the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from observed import command, sections
from unpacking import VERSIONS, unpack

import frazil
from frazil.cli.main import main
from frazil.core.clock import SystemClock
from frazil.core.disk import LocalDisk
from frazil.core.disk.json_file import read_json, write_json
from frazil.lake.catalogs.opening import open_catalog
from frazil.log.folder.identity import folder_id
from frazil.log.folder.ownership import SERVE_FILE, served_by
from frazil.log.format import frames
from frazil.log.repair.repair import repair
from frazil.node.movers.status import pipeline_status
from frazil.node.movers.table_progress import status_path
from frazil.node.retention.moved import MovedFolder
from parts.in_process import MoverHere

ORDERS, LEDGER = "/shop/orders", "/shop/ledger"
NEWER = r"was made by a newer Frazil \(format version 2, and this one reads up to 1\); open it with that Frazil"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpack(VERSIONS[-1], tmp_path)


@pytest.fixture
def settings(folder: Path) -> frazil.Settings:
    return frazil.Settings.model_validate(sections(folder))


def files_of(folder: Path) -> dict[str, bytes]:
    """All of a topic's folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def make_record_newer(path: Path) -> None:
    outer = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**outer, "format": 2}), encoding="utf-8")


def newer_segment(settings: frazil.Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A topic whose only segment says that it has format 2."""
    with monkeypatch.context() as later, frazil.open(settings) as storage:
        later.setattr(frames, "FORMAT_VERSION", 2)
        storage.topic("/shop/newer").publish("tea")
    return settings.log_folder / "shop" / "newer"


def newer_record(settings: frazil.Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    with frazil.open(settings) as storage:
        storage.topic("/shop/newer").publish("tea")
    place = settings.log_folder / "shop" / "newer"
    make_record_newer(place / "topic.json")
    return place


@pytest.mark.parametrize("make", [newer_segment, newer_record])
def test_a_topic_of_a_newer_version_is_refused_and_left_as_it_is(
    settings: frazil.Settings, monkeypatch: pytest.MonkeyPatch, make, capsys: pytest.CaptureFixture[str]
) -> None:  # type: ignore[no-untyped-def]
    place = make(settings, monkeypatch)
    before = files_of(place)
    with frazil.open(settings) as storage:
        with pytest.raises(frazil.NewerFormat, match=NEWER) as refused:
            storage.topic("/shop/newer")
        assert (refused.value.version, refused.value.known) == (2, 1)
        orders = storage.topic(ORDERS)
        assert orders.publish("goes on") == orders.stats().end - 1
        assert "/shop/newer" not in MoverHere(settings, storage).errors(), "the others are moved"
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        repair(settings, "/shop/newer")
    assert main(["log", "check", "--data", str(settings.data)]) == 5
    assert "newer Frazil" in "".join(capsys.readouterr())
    assert files_of(place) == before


@pytest.mark.parametrize("name", ["~ends", "~renumbering"])
def test_a_log_folder_with_a_newer_record_is_not_opened(settings: frazil.Settings, name: str) -> None:
    path = settings.log_folder / name
    if not path.exists():
        path.write_text('{"crc": 0, "content": "{}"}', encoding="utf-8")
    make_record_newer(path)
    before = files_of(settings.log_folder)
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        frazil.open(settings)
    assert before.items() <= files_of(settings.log_folder).items()


def test_a_newer_repair_record_of_all_logs_keeps_repair_from_writing_it(settings: frazil.Settings) -> None:
    make_record_newer(settings.log_folder / "~ends")
    before = (settings.log_folder / "~ends").read_bytes()
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        repair(settings, LEDGER)
    assert (settings.log_folder / "~ends").read_bytes() == before


def test_newer_marks_of_a_folder_are_refused(settings: frazil.Settings) -> None:
    assert settings.data is not None
    (settings.log_folder / "~moved").write_text('{"format": 2}', encoding="utf-8")
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        MovedFolder(settings, LocalDisk()).catalog()
    (settings.data / "~folder").write_text('{"format": 2}', encoding="utf-8")
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        folder_id(LocalDisk(), settings.data)


def test_a_newer_status_is_refused_where_it_is_asked_for_and_written_anew(
    settings: frazil.Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    path = status_path(settings)
    write_json(path, {"format": 2, "topics": "of another form"})
    with pytest.raises(frazil.NewerFormat, match=NEWER):
        pipeline_status(settings, SystemClock())
    assert read_json(path) is None
    assert main(["topics", "list", "--data", str(settings.data)]) == 0
    assert main(["doctor", "--data", str(settings.data)]) in (0, 1)
    assert "open it with that Frazil" in capsys.readouterr().out, "doctor tells it"
    write_json(path, {"state": "running"})
    assert read_json(path) == {"state": "running"}, "today's files have no number"


def test_the_address_of_a_newer_server_is_refused_only_while_it_runs(settings: frazil.Settings) -> None:
    assert settings.data is not None
    write_json(settings.data / SERVE_FILE, {"format": 2, "doors": []})
    assert served_by(settings) is None, "nobody owns the folder: it was left by a crash"
    with frazil.open(settings), pytest.raises(frazil.NewerFormat, match=NEWER):
        served_by(settings)


def test_a_table_of_a_newer_version_is_refused_and_others_go_on(folder: Path, settings: frazil.Settings) -> None:
    table = open_catalog(settings).load_table(("shop", "orders"))
    with table.transaction() as change:
        change.set_properties({"frazil.format": "2"})
    newer = r"shop\.orders was made by a newer Frazil \(frazil\.format 2, and this one reads 1\)"
    with frazil.open(settings) as storage:
        storage.topic(LEDGER).publish("goes on")
        report = MoverHere(settings, storage).tick()
        assert "newer Frazil" in str(report.topics[ORDERS].error)
        assert report.topics[LEDGER].error is None
        with pytest.raises(frazil.TableRefused, match=newer):
            list(storage.topic(ORDERS).read_batches(0))
    with frazil.open_read_only({**sections(folder), "data": None}) as node, pytest.raises(frazil.TableRefused):
        list(node.topic(ORDERS).read("earliest"))
    assert main(["sql", "select count(*) from shop.orders", "--config", str(folder / "frazil.yaml")]) != 0
    assert command(folder, "sql", "select count(*) as n from shop.ledger") == {"n": 14}
