"""A process is killed while it uploads, again and again: each acknowledged row is in one object, and in one place."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from upload_child import TOPIC, settings

import frazil
from frazil.meta.opening import open_meta
from frazil.node.objects.parts import ObjectParts
from frazil.objects.loading import load_objects
from frazil.objects.manifests import Manifests
from frazil.objects.opening import open_objects
from frazil.objects.reading import ObjectReader, name_of

CHILD = Path(__file__).with_name("upload_child.py")


def killed_run(folder: Path, alive_seconds: float, what: str = "keeps") -> int:
    """Let a process publish so long after its first acknowledgement; returns the last acknowledged offset."""
    child = subprocess.Popen([sys.executable, str(CHILD), str(folder), what], stdout=subprocess.PIPE, bufsize=0)
    assert child.stdout is not None
    told, end = b"", None
    try:
        while end is None or time.monotonic() < end:
            if select.select([child.stdout], [], [], 0.02)[0]:
                data = os.read(child.stdout.fileno(), 1 << 16)
                assert data, "the process ended by itself"
                told += data
                end = end or time.monotonic() + alive_seconds
    finally:
        child.send_signal(signal.SIGKILL)
        told += child.stdout.read() or b""
        child.wait()
        child.stdout.close()
    return int(told.split(b"\n")[-2])


def check_objects(folder: Path, log_id: str, *, reads: bool = True) -> int:
    """Check what a listing alone finds, and return its end."""
    store = open_objects(settings(str(folder)))
    found = load_objects(store, log_id, None)
    assert all(one.end == following.first for one, following in itertools.pairwise(found.objects))
    if found.objects and reads:
        assert found.objects[0].first == 0
        batches = list(ObjectReader(store, found.objects, 0))
        numbers = [int(bytes(each).split()[0]) for one in batches for each in one.rows.column("_payload").to_pylist()]
        assert numbers == list(range(found.objects[-1].end))
    return found.end


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("rounds", [5, pytest.param(60, marks=pytest.mark.long)])
def test_a_killed_upload_loses_and_doubles_nothing(tmp_path: Path, rounds: int) -> None:
    rng = random.Random()
    acknowledged, ends = -1, []
    for number in range(rounds):
        acknowledged = max(acknowledged, killed_run(tmp_path, rng.uniform(0.2, 2.0)))
        (log_id,) = os.listdir(tmp_path / "store" / "wal") or [""]
        ends.append(check_objects(tmp_path, log_id, reads=number % 10 == 4))
    assert ends == sorted(ends)
    assert ends[-1] > 0, "nothing was ever uploaded"
    with frazil.open(settings(str(tmp_path))) as storage:
        topic = storage.topic(TOPIC)
        assert topic.log.first_offset > 0, "no file was ever removed"
        assert topic.log.removal.dropped == ()
        read = [int(message.payload.split()[0]) for message in topic.read("earliest")]
        assert read == list(range(topic.log.durable_end))
        assert acknowledged < topic.log.durable_end <= acknowledged + 2
        parts = storage.attachment
        assert isinstance(parts, ObjectParts)
        parts.uploader.finish(topic.log)
        assert parts.objects.of(topic.log.log_id).load().end == topic.log.durable_end
        end = topic.log.durable_end
    assert check_objects(tmp_path, log_id) == end
    with contextlib.closing(open_meta(settings(str(tmp_path)))) as meta:
        manifests = Manifests(meta).of(log_id)
    chain = load_objects(open_objects(settings(str(tmp_path))), log_id, None).objects
    assert [name_of(one) for one in manifests] == [name_of(one) for one in chain]


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.long)])
def test_a_killed_removal_of_objects_leaves_no_hole_and_nothing_unaccounted(tmp_path: Path, rounds: int) -> None:
    rng, acknowledged, first = random.Random(), -1, 0
    place = settings(str(tmp_path), keeps_objects=False)
    for _ in range(rounds):
        acknowledged = max(acknowledged, killed_run(tmp_path, rng.uniform(0.5, 3.0), "removes"))
        (log_id,) = os.listdir(tmp_path / "store" / "wal") or [""]
        held = load_objects(open_objects(place), log_id, None).objects
        assert all(one.end == following.first for one, following in itertools.pairwise(held))
        assert not held or held[0].first >= first
        first = held[0].first if held else first
    with frazil.open(place) as storage:
        topic, parts = storage.topic(TOPIC), storage.attachment
        assert isinstance(parts, ObjectParts)
        parts.uploader.finish(topic.log)
        storage.maintain()
        parts.retention.enforce(topic.log)
        first = parts.objects.of(log_id).load().all()[0].first
        assert first > 0, "no object was ever removed"
        (dropped,) = topic.log.removal.dropped
        assert (dropped.offsets.start, dropped.offsets.end) == (0, first)
        read = [int(message.payload.split()[0]) for message in topic.read("earliest")]
        assert read == list(range(first, topic.log.durable_end))
        assert acknowledged < topic.log.durable_end <= acknowledged + 2
        listed = load_objects(parts.store, log_id, None).objects
        assert [name_of(one) for one in listed] == [name_of(one) for one in parts.objects.of(log_id).load().all()]
