"""Topics of a folder that its storage withholds, because another broker of the cluster may own them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import frazil
from frazil.core.errors import Closed, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.core.topic_names import TopicNames
from frazil.log.storage import open_storage

ORDERS, OTHER = TopicName.parse("/default/orders"), TopicName.parse("/default/other")


def filled(folder: Path) -> None:
    with frazil.open(folder) as storage:
        for name in (ORDERS, OTHER):
            for number in range(3):
                storage.topic(str(name)).publish(f"{name}-{number}")


def payloads(storage: frazil.Storage, name: TopicName) -> list[bytes]:
    return [one.payload for one in storage.topic(str(name), create=False).read()]


def test_a_withheld_topic_is_none_of_the_storage(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        storage.admission.withhold_all()
        assert storage.names() == set()
        assert storage.family(ORDERS) == set()
        assert storage.admission.withheld() == {ORDERS, OTHER}
        with pytest.raises(TopicNotFound):
            storage.topic(str(ORDERS), create=False)
        with pytest.raises(TryLater, match="not put away"):
            storage.create_topic(str(ORDERS))
        with pytest.raises(TryLater, match="not put away"):
            storage.topic(str(ORDERS))


def test_an_admitted_topic_has_its_rows_and_remembers_its_epoch(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        storage.admission.withhold_all()
        assert storage.admission.record(ORDERS).owner_epoch == 0
        storage.admission.admit(ORDERS)
        storage.admission.remember(ORDERS, 7, 9)
        assert payloads(storage, ORDERS) == [b"/default/orders-0", b"/default/orders-1", b"/default/orders-2"]
        assert storage.names() == {ORDERS}
    with open_storage(tmp_path) as storage:
        known = storage.admission.record(ORDERS)
        assert (known.owner_epoch, known.object_epoch) == (7, 9)
        assert storage.admission.record(OTHER).owner_epoch == 0


def test_withholding_an_open_topic_closes_it_with_all_its_rows(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        topic = storage.topic(str(ORDERS))
        storage.admission.withhold(ORDERS)
        with pytest.raises(Closed):
            topic.publish("late")
        assert storage.opened_topics() == []
        storage.admission.withhold(ORDERS)  # again: it is withheld already
        storage.admission.admit(ORDERS)
        assert storage.topic(str(ORDERS)).publish("next") == 3


def test_a_removed_folder_is_gone_and_its_name_free(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        storage.admission.withhold_all()
        used = storage.budget.used_bytes
        storage.admission.remove(ORDERS)
        assert storage.budget.used_bytes < used
        assert storage.admission.withheld() == {OTHER}
        assert storage.admission.record(ORDERS) is None
        assert storage.create_topic(str(ORDERS)).publish("new") == 0
    assert not (tmp_path / "log" / "~lost").exists()


def test_a_folder_that_is_set_aside_keeps_its_files(tmp_path: Path) -> None:
    filled(tmp_path)
    before = sorted(one.name for one in (tmp_path / "log" / "default" / "orders").iterdir())
    with open_storage(tmp_path) as storage:
        storage.admission.withhold_all()
        aside = storage.admission.set_aside(ORDERS)
        assert aside is not None
        assert aside.parent == tmp_path / "log" / "~lost" / "default" / "orders"
        assert sorted(one.name for one in aside.iterdir()) == before
        assert storage.admission.set_aside(ORDERS) is None, "there is none any more"
        assert storage.create_topic(str(ORDERS)).publish("new") == 0
    with open_storage(tmp_path) as storage:
        assert storage.names() == {ORDERS, OTHER}, "what is set aside is no topic"


def test_only_withheld_folders_are_removed_or_set_aside(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        storage.admission.remove(ORDERS)
        assert storage.admission.set_aside(ORDERS) is None
        assert len(payloads(storage, ORDERS)) == 3


@pytest.mark.parametrize("step", ["discard", "add"])
def test_a_topic_is_in_the_folder_also_while_it_is_withheld_or_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Who looks in between would take it for gone, and forget it."""
    filled(tmp_path)
    with open_storage(tmp_path) as storage:
        storage.admission.withhold_all()
        storage.admission.admit(ORDERS)
        real, seen, looks = getattr(TopicNames, step), list[set[TopicName]](), list[threading.Thread]()

        def looked_at(names: TopicNames, name: TopicName) -> None:
            if step == "discard":
                real(names, name)
            looks.append(threading.Thread(target=lambda: seen.append(storage.admission.names())))
            looks[0].start()
            looks[0].join(0.1)
            if step == "add":
                real(names, name)

        monkeypatch.setattr(TopicNames, step, looked_at)
        if step == "discard":
            storage.admission.withhold(ORDERS)
        else:
            storage.admission.admit(OTHER)
        looks[0].join()
        assert seen == [{ORDERS, OTHER}]
        monkeypatch.undo()
