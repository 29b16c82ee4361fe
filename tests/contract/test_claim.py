"""One data folder and one process at a time use a part of the metadata store."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from metas import TTL_MS, Place

import frazil
from frazil.broker.store.claim import Claim
from frazil.core.process.identity import ProcessIdentity
from frazil.meta.broker_keys import OWNER, SESSION
from frazil.meta.session import Held
from frazil.meta.store import ABSENT, MetaStore
from parts.processes import pause

WAIT_S = 60


@contextlib.contextmanager
def opened(place: Place) -> Iterator[MetaStore]:
    with contextlib.closing(place.open()) as store:
        yield store


def claim(place: Place, store: MetaStore, folder: str = "f", ttl_ms: int = 60_000) -> Claim:
    return Claim(store, place.metadata, folder, f"/data/{folder}", ttl_ms)


def in_process(place: Place, told: Connection) -> None:
    """Hold the claim until killed."""
    store = place.open()
    claim(place, store).take()
    told.send(os.getpid())
    threading.Event().wait()


@contextlib.contextmanager
def holder(place: Place) -> Iterator[int]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=in_process, args=(place, there), daemon=True)
    process.start()
    try:
        assert here.poll(WAIT_S)
        yield here.recv()
    finally:
        process.kill()
        process.join(WAIT_S)


def test_a_prefix_belongs_to_one_folder_for_good(place: Place, store: MetaStore) -> None:
    first = claim(place, store)
    first.take()
    first.release()
    with opened(place) as other:
        with pytest.raises(
            frazil.MetadataInUse, match=r"is used by the data folder /data/f, last of process \d+ on"
        ) as e:
            claim(place, other, "another").take()
        assert OWNER in e.value.message, "it says which key to delete if that folder is gone"
        assert other.get(SESSION) is None, "a claim that was refused leaves nothing"
        claim(place, other, "f").take()


def test_records_of_a_newer_version_are_refused(place: Place, store: MetaStore) -> None:
    store.put_all({OWNER: json.dumps({"folder": "f", "path": "p", "process": None, "format": 2}).encode()})
    with (
        opened(place) as other,
        pytest.raises(frazil.NewerFormat, match="format version 2, and this one reads up to 1"),
    ):
        claim(place, other).take()


def test_a_process_that_runs_keeps_others_out_at_once_and_one_that_was_killed_does_not(
    place: Place, store: MetaStore
) -> None:
    """The lease of a minute is not waited for: on one machine a process can be asked whether it runs."""
    with holder(place) as pid:
        with pytest.raises(frazil.MetadataInUse, match=f"is used by process {pid} on"):
            claim(place, store).take()
        os.kill(pid, signal.SIGKILL)
        while _runs(pid):
            pause(0.01)
        claim(place, store).take()


def _runs(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return False


def test_of_a_process_elsewhere_the_lease_decides(place: Place, store: MetaStore) -> None:
    elsewhere = ProcessIdentity("far", "another boot", 1, 1).stored()
    value = json.dumps({"session": "s", "process": elsewhere}).encode()
    lease = store.grant_lease(TTL_MS[place.kind])
    assert store.put_if(SESSION, value, ABSENT, lease) is not None
    place.compact()  # what happened since it was put is no longer known
    claim(place, store).take()
    with opened(place) as far:
        found = far.get(SESSION)
        assert found is not None
        assert far.delete(SESSION, found.revision)
        lease = far.grant_lease(60_000)
        revision = far.put_if(SESSION, value, ABSENT, lease)
        assert revision is not None
        beat = threading.Timer(0.3, lambda: far.put_if(SESSION, value, revision, lease))
        beat.start()
        with opened(place) as near, pytest.raises(frazil.MetadataInUse, match="is used by process 1 on far"):
            claim(place, near).take()
        beat.join()


def test_what_is_looked_at_in_time_is_kept(place: Place, store: MetaStore) -> None:
    mine = claim(place, store, ttl_ms=3_000)
    mine.take()
    for _ in range(8):
        pause(mine.beat_ms / 1_000)
        assert mine.look() is Held.KEPT
        store.put_all({"/a": b"one"})
    mine.release()
    assert store.get(SESSION) is None


def test_who_slept_past_the_lease_changes_nothing_until_the_claim_is_taken_again(
    place: Place, store: MetaStore
) -> None:
    mine = claim(place, store, ttl_ms=TTL_MS[place.kind])
    mine.take()
    _sleep_past_the_lease(place)
    with pytest.raises(frazil.Fenced):
        store.put_all({"/a": b"one"})
    assert mine.look() is Held.TAKEN_AGAIN
    store.put_all({"/a": b"two"})
    assert mine.look() is Held.KEPT


def test_who_slept_while_another_took_the_claim_is_told_and_changes_nothing_any_more(
    place: Place, store: MetaStore
) -> None:
    mine = claim(place, store, ttl_ms=TTL_MS[place.kind])
    mine.take()
    _sleep_past_the_lease(place)
    with opened(place) as other:
        claim(place, other).take()
        with pytest.raises(frazil.MetadataInUse, match=f"is used by process {os.getpid()} on"):
            mine.look()
        with pytest.raises(frazil.Fenced):
            store.put_all({"/a": b"one"})
        mine.release()
        other.put_all({"/a": b"the other's"})


def test_a_session_that_is_older_than_the_last_look_was_restored_and_is_taken_again(
    place: Place, store: MetaStore
) -> None:
    """A copy of the store has the session as it was when the copy was made: that of this very process."""
    mine = claim(place, store)
    mine.take()
    assert mine.look() is Held.KEPT
    mine._session._revision += 1_000
    assert mine.look() is Held.TAKEN_AGAIN
    assert mine.look() is Held.KEPT


def _sleep_past_the_lease(place: Place) -> None:
    with opened(place) as others:
        while others.get(SESSION) is not None:
            pause(0.05)
