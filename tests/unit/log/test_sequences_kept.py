"""What a log remembers of its producers is as durable as the rows: across restarts, segments, retention, repair."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from numbered_logs import AN_HOUR_US, FIRST, Logs, log_schema
from segment_files import FOLDER, LOG, SCHEMA, SETTINGS, TOPIC, frames_of, get, put

from frazil import (
    DiskFull,
    ProducerFenced,
    ProducerState,
    RetentionSettings,
    Sent,
    SequenceForgotten,
    SequenceGap,
)
from frazil.core.disk.memory import MemoryDisk
from frazil.core.sequences import PRODUCERS_MAX, RECENT_MAX, ProducerOpening
from frazil.log.format.frames import SegmentHead, pack_head
from frazil.log.format.records import read_record, write_record
from frazil.log.repair.check import State, check
from frazil.log.repair.repair import repair
from frazil.log.storage import open_storage
from frazil.log.write.producers import Producers, above_unseen
from frazil.testing import FaultyDisk


def test_producers_are_remembered_after_a_restart() -> None:
    log = Logs()
    log.send(0)
    log.send(2, 3)
    before = log.state()
    log.restart()
    assert log.state() == before
    assert [log.send(2, 3), log.send(0), log.send(5)] == [2, 0, 5]
    assert log.values() == list(range(7))


def test_the_last_segment_alone_tells_what_all_before_it_held() -> None:
    log = Logs(max_file_age_ms=1_000)
    for number in range(5):
        log.send(2 * number)
        log.send(3 * number, 3, producer="q")
        log.clock.step_wall(AN_HOUR_US)
    before = log.state(), log.state("q")
    assert len(log.segments()) == 5
    log.restart()
    assert (log.state(), log.state("q")) == before
    assert [log.send(0), log.send(3, 3, producer="q"), log.send(10)] == [0, 7, 25]


def test_a_new_segment_without_rows_tells_it_too() -> None:
    log = Logs(retention=RetentionSettings(age_ms=1_000))
    log.send(0)
    log.topic.open_producer("q")
    log.clock.step_wall(AN_HOUR_US)
    log.storage.maintain()
    assert log.topic.stats().messages == 0
    before = log.state(), log.state("q")
    for _ in range(2):
        log.restart()
        assert (log.state(), log.state("q")) == before == (ProducerState(0, 2, ((0, 0, 2),)), ProducerState(0, 0))
    assert [log.send(0), log.send(2)] == [0, 2]


def test_a_last_segment_that_is_sealed_tells_it_too() -> None:
    log = Logs(max_file_age_ms=1_000)
    log.send(0)
    log.clock.step_wall(AN_HOUR_US)
    log.storage.maintain()  # by its age the segment is sealed; nothing follows yet
    log.restart()
    assert [log.send(0), log.send(2)] == [0, 2]
    assert len(log.segments()) == 2


def test_a_changed_schema_forgets_nobody() -> None:
    log = Logs()
    log.send(0)
    log.storage.change_schema(TOPIC, pa.schema([*SCHEMA, pa.field("more", pa.int64())]))
    wider = pa.record_batch({"value": [2, 3], "more": [None, 5]}, schema=log.topic.schema)
    assert log.topic.publish_many(wider, sent=Sent("p", 0, 2)).start == 2
    log.restart()
    assert log.state() == ProducerState(0, 4, ((0, 0, 2), (2, 2, 2)))


def test_a_torn_last_frame_was_never_sent() -> None:
    log = Logs()
    log.send(0)
    log.send(2)
    data = get(log.disk, FIRST)
    last = frames_of(log.disk, FIRST)[-1]
    for cut in range(last.position + 8, last.end_position, 64):
        log.storage._context.keeper.close()
        log.storage._context.pool.close()
        log.disk = _copied(log.disk, other := MemoryDisk())
        put(other, FIRST, data[:cut])
        log.storage = open_storage(log.settings, disk=other, clock=log.clock)
        log.topic = log.storage.topic(TOPIC)
        assert log.state() == ProducerState(0, 2, ((0, 0, 2),))
        assert [log.send(0), log.send(2)] == [0, 2]
        assert log.values() == [0, 1, 2, 3]


def _copied(disk: MemoryDisk, other: MemoryDisk) -> MemoryDisk:
    other.make_folder(FOLDER)
    for name in ("topic.json", FIRST.name):
        put(other, FOLDER / name, get(disk, FOLDER / name))
    return other


# --- epochs


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_does_not_give_a_name_back(seed: int) -> None:
    log = Logs(FaultyDisk())
    assert log.topic.open_producer("p").epoch == 0
    log.send(0)
    assert log.topic.open_producer("p").epoch == 1
    assert log.topic.open_producer("new").epoch == 0
    log.crash(seed)
    with pytest.raises(ProducerFenced):
        log.send(2, epoch=0)
    assert log.topic.open_producer("p") == ProducerState(2, 2)
    assert log.topic.open_producer("new").epoch == 1
    assert log.send(2, epoch=2) == 2


def test_a_name_that_could_not_be_recorded_is_not_handed_out() -> None:
    log = Logs(FaultyDisk())
    log.storage._catalog._spare.give_up()
    log.disk.capacity_bytes = log.disk.used_bytes
    with pytest.raises(DiskFull):
        log.topic.open_producer("p")
    log.disk.capacity_bytes = None
    assert log.topic.open_producer("p").epoch == 1


def test_one_who_asks_again_because_it_could_not_be_recorded_is_recorded_then() -> None:
    log = Logs(FaultyDisk())
    log.topic.open_producer("p", client="before")
    log.storage._catalog._spare.give_up()
    log.disk.capacity_bytes = log.disk.used_bytes
    for _ in range(2):
        with pytest.raises(DiskFull):
            log.topic.open_producer("p", client="new")
    log.disk.capacity_bytes = None
    assert log.topic.open_producer("p", client="new").epoch == 1
    log.crash()
    assert log.state() == ProducerState(1, 0)
    assert log.topic.open_producer("p", client="new").epoch == 1
    with pytest.raises(ProducerFenced):
        log.send(0, epoch=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_client_is_known_again_after_a_power_cut_and_so_are_its_batches_alone(seed: int) -> None:
    log = Logs(FaultyDisk(), max_file_age_ms=1_000)
    log.topic.open_producer("p", client="old")
    log.send(0)
    new = log.topic.open_producer("p", client="new")
    for again in (1, 2):
        log.crash(seed)
        opened = log.topic.log.open_producer("p", ProducerOpening("new", held=new.epoch))
        assert (opened.state, opened.resumed) == (log.state(), True)
        assert opened.state.epoch == new.epoch
        with pytest.raises(ProducerFenced):
            log.topic.log.open_producer("p", ProducerOpening("old", held=0))
        with pytest.raises(SequenceForgotten):  # the old client's batch, by number and rows
            log.send(0, epoch=new.epoch)
        log.clock.step_wall(AN_HOUR_US)  # the next batch begins a segment, whose head tells the rest
        assert log.send(2 * again, epoch=new.epoch) == 2 * again
        assert log.send(2 * again, epoch=new.epoch) == 2 * again
    assert log.values() == list(range(6))


def test_places_in_a_table_from_before_epochs_had_clients_match_nothing() -> None:
    """Whose epoch each of them was is not known."""
    old = b'{"floor":0,"producers":[["p",3,4,[0,2,2,2]]]}'
    assert Producers.from_text(old, 4).get("p") == ProducerState(3, 4)
    new = old[:-1] + b',"own":true}'
    assert Producers.from_text(new, 4).get("p") == ProducerState(3, 4, ((0, 0, 2), (2, 2, 2)))


def test_a_record_from_before_epochs_had_clients_is_read_and_its_clients_are_refused() -> None:
    log = Logs()
    log.topic.open_producer("p", client="a")
    log.topic.open_producer("p", client="a")
    log.send(0)
    log.storage.close()
    path = FOLDER / "topic.json"
    content = dict(read_record(log.disk, path) or {})
    assert content.pop("clients") == {"p": "a"}
    write_record(log.disk, path, content)
    log.restart()
    opened = log.topic.log.open_producer("p", ProducerOpening("a", held=0))  # nobody has taken the name since
    assert (opened.state, opened.resumed) == (ProducerState(1, 2), False)
    with pytest.raises(ProducerFenced):
        log.topic.log.open_producer("p", ProducerOpening("b", held=0))


def test_a_producer_that_was_forgotten_is_a_new_one_to_its_client_also_after_a_crash() -> None:
    log = Logs(FaultyDisk())
    held = log.topic.open_producer("p", client="a").epoch
    log.send(0, epoch=held)
    for number in range(PRODUCERS_MAX - 1):
        log.topic.log._sequencer.producers.open(f"other {number}")
    silent = log.topic.open_producer("silent", client="s")
    assert log.state("p") is None
    log.crash()
    assert log.state("p") is None, "that it was forgotten is recorded with the name that took its place"
    with pytest.raises(SequenceForgotten):
        log.send(0, epoch=held)
    opened = log.topic.log.open_producer("p", ProducerOpening("a", held=held))
    assert opened.resumed is False
    assert (opened.state.epoch, opened.state.next_sequence) == (2**32, 0)
    assert log.topic.log.open_producer("silent", ProducerOpening("s", held=silent.epoch)).resumed, (
        "it was not forgotten"
    )
    assert log.values() == [0, 1]


def test_a_topic_made_again_knows_no_producer() -> None:
    log = Logs()
    log.topic.open_producer("p")
    log.send(0)
    log.storage.delete_topic(TOPIC)
    log.topic = log.storage.topic(TOPIC, schema=SCHEMA)
    assert log.state() is None
    assert log.send(0) == 0


# --- bounds


def test_the_producer_that_wrote_longest_ago_is_forgotten_and_never_taken_for_new() -> None:
    log = Logs(cache_capacity=0)
    producers = log.topic.log._sequencer.producers
    log.topic.open_producer("first")
    log.send(0, producer="first")
    log.send(0, producer="second")
    for number in range(PRODUCERS_MAX - 2):
        producers.open(f"other {number}")
    log.send(2, producer="first")
    assert len(producers) == PRODUCERS_MAX
    log.send(0, producer="one more")
    for _ in range(2):
        assert log.state("second") is None
        with pytest.raises(SequenceForgotten):
            log.send(0, producer="second")
        with pytest.raises(SequenceForgotten):
            log.send(2, producer="second")
        assert [log.send(0, producer="first"), log.send(2, producer="first")] == [0, 4]
        log.clock.step_wall(AN_HOUR_US)
        log.topic.log._seal()  # the next segment's head tells all of it
        log.send(0, producer=f"yet one {log.topic.stats().end}", epoch=2**32)
        log.restart()
    assert log.topic.open_producer("second") == ProducerState(2**32, 0)
    with pytest.raises(ProducerFenced):
        log.send(0, producer="second")
    with pytest.raises(SequenceGap):
        log.send(2, producer="second", epoch=2**32)


def test_who_is_forgotten_first_is_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.log.write.producers.PRODUCERS_MAX", 3)
    log = Logs()
    for producer in "cba":
        log.send(0, producer=producer, epoch=log.topic.open_producer(producer).epoch)
    log.restart()
    log.send(0, producer="d")
    assert {producer for producer in "abcd" if log.state(producer) is not None} == {"a", "b", "d"}
    assert log.send(0, producer="a") == 4, "it is known as the batch that was stored"


def test_a_name_that_was_forgotten_and_taken_again_is_not_mixed_up_with_the_old_one_after_a_crash() -> None:
    log = Logs(FaultyDisk())
    log.send(0, producer="old")
    for number in range(PRODUCERS_MAX):  # not a row is written meanwhile: only the record of epochs tells of it
        log.topic.log._sequencer.producers.open(f"other {number}")
    state = log.topic.open_producer("old")
    assert state == ProducerState(2**32, 0)
    log.crash()
    assert log.state("old") == state
    assert log.send(0, producer="old", epoch=state.epoch) == 2, "new rows were taken for the old ones"


def test_the_largest_table_fits_in_a_head_and_is_read_back() -> None:
    producers = Producers()
    rng = random.Random(1)
    end = 10**15
    for number in range(PRODUCERS_MAX):
        name = f"{number}".rjust(255, "ü")
        sequence = rng.randrange(10**12)
        for _ in range(RECENT_MAX + 1):
            rows = rng.randrange(1, 10_000)
            producers.store(Sent(name, 7, sequence), rows, end)
            sequence, end = sequence + rows, end + rows
    text = producers.as_text()
    assert len(text) < 3 * 1024 * 1024
    found = Producers.from_text(text, end)
    assert found.as_text() == text
    assert found.get(name) == producers.get(name)
    assert len(producers.get(name).recent) == RECENT_MAX  # type: ignore[union-attr]
    packed = pack_head(5, SegmentHead("id", TOPIC, SETTINGS.wal.sync_mode, log_schema()), text)
    assert len(packed) < 4 * 1024 * 1024


# --- check and repair


def test_a_check_finds_nothing_wrong_and_a_repair_takes_back_what_it_cuts() -> None:
    log = Logs(max_file_age_ms=1_000)
    for number in range(4):
        log.send(4 * number)
        log.send(4 * number + 2)
        log.clock.step_wall(AN_HOUR_US)
    log.storage.close()
    assert [report.state for report in check(log.disk, LOG)] == [State.OK]
    third = log.segments()[2]
    second_frame = frames_of(log.disk, third)[2]
    data = bytearray(get(log.disk, third))
    data[second_frame.position + 100] ^= 0x40
    put(log.disk, third, bytes(data))
    assert repair(log.settings, TOPIC, disk=log.disk).plan.end == 10
    log.storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
    log.topic = log.storage.topic(TOPIC)
    assert log.state() == ProducerState(0, 10, tuple((2 * n, 2 * n, 2) for n in range(5)))
    assert [log.send(8), log.send(10)] == [8, 10]


def test_a_record_that_is_rebuilt_lets_no_fenced_client_back() -> None:
    log = Logs(max_file_age_ms=1_000)
    log.send(0)
    log.clock.step_wall(AN_HOUR_US)
    log.send(2)
    log.send(0, producer="wrote once")
    new = log.topic.open_producer("p")  # takes the name, and dies before it has sent a row
    for _ in range(2):
        silent = log.topic.open_producer("never wrote")
    log.storage.close()
    log.disk.remove(FOLDER / "topic.json")
    repair(log.settings, TOPIC, disk=log.disk)
    log.storage = open_storage(log.settings, disk=log.disk, clock=log.clock)
    log.topic = log.storage.topic(TOPIC)
    with pytest.raises(ProducerFenced):
        log.topic.log.open_producer("p", ProducerOpening(str(new.client), held=new.epoch))
    for _ in range(2):
        for producer, epoch, sequence in (("p", 0, 4), ("p", new.epoch, 4), ("wrote once", 0, 2)):
            with pytest.raises(ProducerFenced):
                log.send(sequence, producer=producer, epoch=epoch)
        for epoch in range(silent.epoch + 1):
            with pytest.raises(SequenceForgotten):
                log.send(0, producer="never wrote", epoch=epoch)
        log.restart()
    again = log.topic.open_producer("p")
    assert again.next_sequence == 4, "how much of it is stored is known"
    assert again.epoch > new.epoch
    with pytest.raises(SequenceForgotten):
        log.send(2, epoch=again.epoch)
    assert log.send(4, epoch=again.epoch) == 6
    begun = log.topic.open_producer("never wrote")
    assert (begun.epoch > silent.epoch, begun.next_sequence) == (True, 0)
    assert log.send(0, producer="never wrote", epoch=begun.epoch) == 8
    log.restart()
    assert log.state("p") == log.topic.producer_state("p")
    assert log.send(6, epoch=again.epoch) == 10


@pytest.mark.parametrize("epoch", [0, 7, (1 << 31) - 2, (1 << 31) - 1 << 1, 5 << 32, (5 << 32) + (1 << 31) - 1])
def test_an_epoch_above_all_that_were_unseen_is_one_that_may_be_given_out(epoch: int) -> None:
    raised = above_unseen(epoch)
    same_half = raised >> 31 == epoch >> 31
    assert raised == (epoch + (1 << 20) if same_half else ((epoch >> 32) + 1) << 32)
    assert raised > epoch
