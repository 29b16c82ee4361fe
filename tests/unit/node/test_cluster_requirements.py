"""What a broker of a cluster needs: whatever its brokers would not share is refused, with the name of the setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.errors import InvalidSettings
from frazil.core.settings import Settings, make_settings
from frazil.node.member.requirements import check_cluster
from frazil.node.opening import open_to_move
from frazil.node.renumber.renumber import renumber


def settings(folder: Path, **others: Any) -> Settings:
    given: dict[str, Any] = {
        "data": str(folder / "data"),
        "metadata": {"type": "etcd", "endpoints": "http://127.0.0.1:1"},
        "objects": {"enabled": True, "store": {"type": "local", "path": str(folder / "objects")}},
        "cluster": {"enabled": True},
        "pipeline": {"enabled": False},
    }
    return make_settings({**given, **others})


def store(**given: str) -> dict[str, Any]:
    return {"objects": {"enabled": True, "store": given}}


def test_what_all_brokers_share_is_accepted(tmp_path: Path) -> None:
    check_cluster(settings(tmp_path), serves=True)
    catalog = {"uri": "postgresql://catalog.example/frazil", "warehouse": "s3://lake/tables"}
    check_cluster(settings(tmp_path, pipeline={"enabled": True}, catalog=catalog), serves=True)


@pytest.mark.parametrize(
    ("others", "field", "problem"),
    [
        ({"data": None}, "data", "needs a data folder"),
        (store(type="memory"), "objects.store.type", "memory is that of one process"),
        (store(type="local"), "objects.store.path", "name a folder that all of them reach"),
        ({"pipeline": {"enabled": True}}, "catalog", "share the tables"),
        ({"security": {"enabled": True, "audit": {"topic": "/default/audit"}}}, "security.audit.topic", "to a file"),
    ],
)  # fmt: skip
def test_what_brokers_would_not_share_is_refused(
    tmp_path: Path, others: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidSettings, match=problem) as refused:
        check_cluster(settings(tmp_path, **others), serves=True)
    assert refused.value.fields["field"] == field


def test_nobody_but_its_server_opens_the_folder_of_a_broker(tmp_path: Path) -> None:
    ours = settings(tmp_path)
    for opening in (lambda: frazil.open(ours), lambda: open_to_move(ours), lambda: renumber(ours, "/default/orders")):
        with pytest.raises(InvalidSettings, match=r"start it with frazil serve"):
            opening()
    assert not (tmp_path / "data").exists()
