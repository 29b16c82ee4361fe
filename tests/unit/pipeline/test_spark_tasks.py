"""What goes to a task of the Spark source, and what the task does with it, without Spark itself."""

from __future__ import annotations

import pickle
import sys
import zipfile
import zipimport
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import frazil
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogSettings
from frazil.pipeline.source.source import BatchSourceReader, FrazilSource, RangePartition
from parts.moving import HandMover

TOPIC = "/shop/orders"
ROWS = 400


def moved(settings: Settings, files: int) -> None:
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        topic.publish_many([b"%d" % number for number in range(ROWS)])
        HandMover(settings).move(topic, files=files)


def planned(settings: Settings, **options: str) -> tuple[BatchSourceReader, list[RangePartition]]:
    source = FrazilSource({"subscribe": TOPIC, "data": str(settings.data), **options})
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def values(reader: BatchSourceReader, tasks: list[RangePartition]) -> list[tuple[int, bytes]]:
    """As tasks get them: through pickle, each on its own."""
    sent: list[RangePartition] = pickle.loads(pickle.dumps(tasks))
    batches = [batch for task in sent for batch in reader.read(task)]
    return [
        pair
        for batch in batches
        for pair in zip(*(batch[name].to_pylist() for name in ("offset", "value")), strict=True)
    ]


EXPECTED = [(number, b"%d" % number) for number in range(ROWS)]


def test_tasks_open_their_files_and_plan_nothing(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    moved(settings, files=5)
    reader, tasks = planned(settings, minPartitions="3")
    removed = [path.unlink() for path in (tmp_path / "warehouse").rglob("metadata/*")]
    assert len(removed) > 3
    assert len(tasks) >= 3
    assert values(reader, tasks) == EXPECTED


def test_files_that_were_compacted_away_since_are_planned_anew(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    moved(settings, files=5)
    reader, tasks = planned(settings)
    table = HandMover(settings).catalog.load_table("shop.orders")
    old = [Path(urlsplit(file.file.file_path).path) for file in table.scan().plan_files()]
    table.overwrite(table.scan().to_arrow())
    for path in old[1:]:
        path.unlink()
    assert values(reader, tasks) == EXPECTED


def test_tasks_are_small_and_do_not_print_secrets(tmp_path: Path) -> None:
    config = tmp_path / "frazil.yaml"
    config.write_text(f"data: {tmp_path}\ncatalog:\n  properties:\n    adls.account-key: a-s3cret\n")
    settings = Settings(data=tmp_path, catalog=CatalogSettings(properties={"adls.account-key": "a-s3cret"}))
    moved(settings, files=40)
    _, tasks = planned(settings, minPartitions="10", config=str(config))
    assert len(tasks) >= 10
    assert max(len(pickle.dumps(task)) for task in tasks) < 6_000
    assert b"a-s3cret" in pickle.dumps(tasks)
    assert "a-s3cret" not in repr(tasks)


def test_a_task_leaves_no_importers_of_zip_files_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has each of them read its whole file again before the next task."""
    settings = Settings(data=tmp_path / "data")
    moved(settings, files=1)
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as made:
        made.writestr("zipped_one.py", "")
        made.writestr("zipped_two.py", "answer = 42")
    monkeypatch.syspath_prepend(str(tmp_path / "some.zip"))
    __import__("zipped_one")
    assert isinstance(sys.path_importer_cache[str(tmp_path / "some.zip")], zipimport.zipimporter)
    assert values(*planned(settings)) == EXPECTED
    assert not any(isinstance(each, zipimport.zipimporter) for each in sys.path_importer_cache.values())
    assert __import__("zipped_two").answer == 42
