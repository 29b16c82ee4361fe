"""A log renumbered, and the verb killed between any two of its steps: on disk, in the metadata store, in the table."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from frazil.core.names import TopicName
from frazil.meta.broker_keys import progress_key
from frazil.meta.opening import open_meta
from parts.behind import ORDERS, repaired, settings_in

NEW = ["new 0", "new 1", "new 2"]
SETTINGS = "data: {0}/data\ncatalog:\n  uri: sqlite:///{0}/lake/catalog.db\nobject_store:\n  path: {0}/lake/warehouse\n"


def test_whatever_is_killed_every_row_is_kept_once_and_no_position_passes_the_cut(tmp_path: Path) -> None:
    place, template = tmp_path / "place", tmp_path / "template"
    settings = settings_in(place)  # a table's files are named by their paths, so every round is in the same place
    repaired(settings, [payload.encode() for payload in NEW])
    with contextlib.closing(open_meta(settings)) as meta:
        meta.put_all(
            {progress_key("s", TopicName.parse(ORDERS)): json.dumps({"offset": 7, "acked": [[8, 9]]}).encode()}
        )
    (place / "settings.yaml").write_text(SETTINGS.format(place))
    shutil.copytree(place, template)
    child = [sys.executable, str(Path(__file__).parent / "renumber_child.py"), template, place, *NEW]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(child, capture_output=True, text=True, timeout=110, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    rounds = [tuple(word == "True" for word in line.split()[1:]) for line in done.stdout.splitlines()]
    assert [ended for ended, *_ in rounds] == [False] * (len(rounds) - 1) + [True]
    states = [one[1:] for one in rounds]  # renumbered, and whether the table knows the log
    assert list(dict.fromkeys(states)) == [(False, True), (True, False), (True, True)]
    assert len(rounds) > 10
