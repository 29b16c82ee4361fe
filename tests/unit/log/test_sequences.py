"""Producers that number their rows: what is taken, what is recognised, what is refused."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest
from append_answers import Answers, committer_holds_it, hold_commits
from segment_files import FOLDER, SCHEMA, SETTINGS, TOPIC, frames_of, numbers

from frazil import (
    Closed,
    DiskFull,
    FrazilError,
    InvalidInput,
    LogFailed,
    Overloaded,
    ProducerFenced,
    ProducerState,
    Sent,
    SequenceForgotten,
    SequenceGap,
    Storage,
    Topic,
    TryLater,
)
from frazil.core.disk import Disk
from frazil.core.errors import MetadataUnavailable
from frazil.core.sequences import NO_EPOCH, PRODUCERS_MAX, RECENT_MAX, ProducerOpening
from frazil.log.storage import open_storage
from frazil.log.write.group import Part
from frazil.testing import FakeClock, FaultyDisk


def opened(disk: Disk, **wal: Any) -> Storage:
    settings = SETTINGS.model_copy(update={"wal": SETTINGS.wal.model_copy(update=wal)})
    return open_storage(settings, disk=disk, clock=FakeClock())


def again(storage: Storage, disk: Disk) -> Topic:
    """The topic after a clean restart."""
    storage.close()
    return opened(disk).topic(TOPIC)


def values(topic: Topic) -> list[int]:
    return [value for batch in topic.read_batches() for value in batch.column("value").to_pylist()]


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def storage(disk: FaultyDisk) -> Storage:
    return opened(disk)


@pytest.fixture
def topic(storage: Storage) -> Topic:
    return storage.create_topic(TOPIC, schema=SCHEMA)


def send(topic: Topic, sequence: int, count: int = 2, *, producer: str = "p", epoch: int = 0) -> int:
    """Rows whose values are their numbers; returns the first offset."""
    offsets = topic.publish_many(numbers(sequence, count), sent=Sent(producer, epoch, sequence))
    assert len(offsets) == count
    return offsets.start


# --- the rules


def test_a_batch_sent_again_gets_the_same_offsets_and_is_stored_once(topic: Topic) -> None:
    assert [send(topic, 0, 2), send(topic, 2, 3), send(topic, 5, 1)] == [0, 2, 5]
    assert [send(topic, 2, 3), send(topic, 0, 2), send(topic, 5, 1)] == [2, 0, 5]
    assert values(topic) == list(range(6))
    assert topic.producer_state("p") == ProducerState(0, 6, ((0, 0, 2), (2, 2, 3), (5, 5, 1)))


def test_messages_are_numbered_like_rows(disk: FaultyDisk) -> None:
    topic = opened(disk).topic("/default/messages")
    for _ in range(2):
        assert topic.publish_many(["tea", "jam"], sent=Sent("p", 0, 0)).start == 0
    assert [message.payload for message in topic.read()] == [b"tea", b"jam"]


def test_producers_count_apart_from_one_another(topic: Topic) -> None:
    assert [send(topic, 0), send(topic, 0, producer="q"), send(topic, 2), send(topic, 2, producer="q")] == [0, 2, 4, 6]
    assert send(topic, 0, producer="q") == 2


def test_a_gap_is_refused_and_names_what_was_expected(topic: Topic) -> None:
    send(topic, 0)
    with pytest.raises(SequenceGap) as refused:
        send(topic, 3)
    assert refused.value.as_dict() | {"message": ""} == {
        "error": "sequence_gap", "message": "", "topic": TOPIC, "producer": "p", "sequence": 3, "expected": 2,
    }  # fmt: skip
    assert send(topic, 2) == 2


def test_a_batch_of_another_size_is_not_taken_for_the_same(topic: Topic) -> None:
    send(topic, 0, 2)
    send(topic, 2, 2)
    for sequence, count in ((0, 1), (0, 4), (1, 2), (2, 1)):
        with pytest.raises(SequenceForgotten):
            send(topic, sequence, count)
    assert values(topic) == [0, 1, 2, 3]


def test_a_batch_that_is_no_longer_remembered_is_refused(topic: Topic) -> None:
    for sequence in range(RECENT_MAX + 1):
        send(topic, sequence, 1)
    assert send(topic, 1, 1) == 1
    with pytest.raises(SequenceForgotten) as refused:
        send(topic, 0, 1)
    assert refused.value.expected == RECENT_MAX + 1
    assert topic.stats().end == RECENT_MAX + 1


def test_an_older_epoch_is_refused_whatever_it_sends(topic: Topic) -> None:
    assert topic.open_producer("p") == ProducerState(0, 0)
    send(topic, 0)
    assert topic.open_producer("p") == ProducerState(1, 2)
    for sequence in (0, 2, 7):
        with pytest.raises(ProducerFenced) as refused:
            send(topic, sequence, epoch=0)
        assert (refused.value.epoch, refused.value.current) == (0, 1)
    assert send(topic, 2, epoch=1) == 2


def test_a_new_epoch_goes_on_and_takes_nothing_of_the_last_one_for_its_own(topic: Topic) -> None:
    """Number and rows are the same, but another client sent them."""
    send(topic, 0)
    send(topic, 2)
    state = topic.open_producer("p")
    for sequence in (0, 2):
        with pytest.raises(SequenceForgotten):
            send(topic, sequence, epoch=state.epoch)
    assert send(topic, state.next_sequence, epoch=state.epoch) == 4
    assert send(topic, 4, epoch=state.epoch) == 4


def test_a_batch_of_another_epoch_is_not_the_same_while_it_waits_either(topic: Topic) -> None:
    answers = Answers(topic)
    with topic.log._io:
        answers.begin(1, 0)
        with pytest.raises(SequenceForgotten):
            send(topic, 0, epoch=1)
    assert answers.wait(1) == {1: 0}
    with pytest.raises(SequenceForgotten):
        send(topic, 0, epoch=1)
    assert values(topic) == [0, 1]


def test_the_same_client_goes_on_with_its_epoch_and_its_batches(topic: Topic) -> None:
    first = topic.open_producer("p", client="of the till")
    send(topic, 0, epoch=first.epoch)
    again = topic.open_producer("p", client="of the till")
    assert again == ProducerState(first.epoch, 2, ((0, 0, 2),))
    assert again.client == "of the till"
    assert [send(topic, 0, epoch=again.epoch), send(topic, 2, epoch=again.epoch)] == [0, 2]
    assert topic.open_producer("p", client="of another till") == ProducerState(first.epoch + 1, 4)
    with pytest.raises(ProducerFenced):
        send(topic, 4, epoch=again.epoch)


def test_a_client_id_that_is_none_is_refused_with_its_field(topic: Topic) -> None:
    for bad in ("", "x" * 65, "ü", 5):
        with pytest.raises(InvalidInput) as refused:
            topic.open_producer("p", client=bad)  # type: ignore[arg-type]
        assert refused.value.field == "client"
    assert topic.producer_state("p") is None


def test_a_client_that_held_or_saw_an_epoch_takes_the_name_from_nobody(topic: Topic) -> None:
    def opened(client: str, **known: int) -> tuple[int, bool]:
        found = topic.log.open_producer("p", ProducerOpening(client, **known))
        return found.state.epoch, found.resumed

    assert opened("a", seen=NO_EPOCH) == (0, False)
    assert opened("a", seen=NO_EPOCH) == (0, True), "its answer was lost, and it asks again"
    assert opened("b", seen=0) == (1, False)
    for known in ({"seen": NO_EPOCH}, {"seen": 0}, {"held": 0}, {"held": 1}, {"held": 2}):
        with pytest.raises(ProducerFenced) as refused:
            opened("a", **known)
        assert refused.value.current == 1
    assert opened("b", held=1) == (1, True)
    assert opened("a", seen=1) == (2, False)


def test_what_an_older_connection_of_a_client_delivers_late_is_refused(topic: Topic) -> None:
    """Its client was told that the batch is not stored, and has given the number to another one."""
    first = topic.log.open_producer("p", ProducerOpening("a")).state
    second = topic.log.open_producer("p", ProducerOpening("a", held=first.epoch)).state
    with pytest.raises(Closed):
        topic.publish_many(numbers(70, 2), sent=Sent("p", first.epoch, 0, first.stream))
    assert topic.publish_many(numbers(0, 2), sent=Sent("p", second.epoch, 0, second.stream)).start == 0
    assert values(topic) == [0, 1]


def test_a_greater_epoch_takes_the_name_with_its_first_batch(topic: Topic) -> None:
    send(topic, 0)
    with pytest.raises(SequenceGap):
        send(topic, 5, epoch=9)
    send(topic, 2, epoch=9)
    with pytest.raises(ProducerFenced):
        send(topic, 4, epoch=8)
    assert topic.open_producer("p").epoch == 10


def test_an_epoch_that_nobody_was_given_is_refused(topic: Topic) -> None:
    for epoch in (2**31, 2**32, 2**63 - 1):
        with pytest.raises(InvalidInput) as refused:
            send(topic, 0, epoch=epoch)
        assert refused.value.field == "epoch"


def test_what_no_producer_can_be_is_refused_with_its_field() -> None:
    for field, bad in (
        ("producer", ["", "x" * 256, 5, None, "\ud800"]),
        ("epoch", [-1, 2**63, True, 1.0, None]),
        ("sequence", [-1, 2**63, False, "0"]),
    ):
        for value in bad:
            with pytest.raises(InvalidInput) as refused:
                Sent(**({"producer": "x" * 255, "epoch": 0, "sequence": 0} | {field: value}))
            assert refused.value.field == field


def test_a_bad_name_is_refused_before_anything_is_recorded(topic: Topic) -> None:
    with pytest.raises(InvalidInput):
        topic.open_producer("")
    assert topic.producer_state("") is None


def test_numbers_beyond_the_last_are_refused(topic: Topic) -> None:
    topic.log._sequencer.producers.store(Sent("p", 0, 2**63 - 3), 1, 0)
    with pytest.raises(InvalidInput, match="sequence"):
        send(topic, 2**63 - 2, 2)


def test_a_closed_log_answers_nothing(storage: Storage, topic: Topic) -> None:
    send(topic, 0)
    storage.close()
    for call in (lambda: send(topic, 0), lambda: send(topic, 2), lambda: topic.open_producer("p")):
        with pytest.raises(Closed):
            call()


# --- on the way to the disk


def test_a_batch_sent_again_while_the_first_waits_gets_the_same_answer(topic: Topic) -> None:
    answers = Answers(topic)
    with topic.log._io:  # no commit gets through
        answers.begin(1, 0)
        answers.begin(2, 2)
        for token in (3, 4):
            answers.begin(token, 0)
        answers.begin(5, 2)
        with pytest.raises(SequenceForgotten):
            answers.begin(6, 0, 3)
        with pytest.raises(SequenceGap):
            answers.begin(7, 6)
        assert answers.settled == {}
    assert answers.wait(5) == {1: 0, 2: 2, 3: 0, 4: 0, 5: 2}
    assert values(topic) == [0, 1, 2, 3]


def test_parts_of_one_group_have_their_offsets_in_their_order_and_after_a_restart_too(
    storage: Storage, topic: Topic, disk: FaultyDisk
) -> None:
    answers = Answers(topic)
    with topic.log._io:
        answers.begin_plain(0)
        committer_holds_it(topic)
        answers.begin(1, 0, 1)
        answers.begin_plain(2)
        answers.begin(3, 0, 3, "q")
        answers.begin(4, 1, 2)
    assert answers.wait(5) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 6}
    assert len(frames_of(disk, FOLDER / f"{0:020d}.wal")) == 3  # type: ignore[arg-type]
    states = {name: topic.producer_state(name) for name in ("p", "q")}
    assert states == {"p": ProducerState(0, 3, ((0, 1, 1), (1, 6, 2))), "q": ProducerState(0, 3, ((0, 3, 3),))}
    topic = again(storage, disk)
    assert states == {name: topic.producer_state(name) for name in ("p", "q")}


def test_what_fails_is_taken_back_with_all_that_waits_behind_it(topic: Topic, disk: FaultyDisk) -> None:
    send(topic, 0)
    answers = Answers(topic)
    with topic.log._io:
        answers.begin(1, 2)
        committer_holds_it(topic)
        answers.begin(2, 2)
        answers.begin(3, 4)
        answers.begin(4, 4)
        answers.begin(5, 0, producer="q")
        answers.begin_plain(6)
        disk.fail("write", errno.ENOSPC)
    answers.wait(6)
    assert {type(answers.settled[token]) for token in (1, 2, 3, 4)} == {DiskFull}
    assert (answers.settled[5], answers.settled[6]) == (2, 4)
    assert topic.stats().queued_bytes == 0
    assert topic.producer_state("p") == ProducerState(0, 2, ((0, 0, 2),))
    assert [send(topic, 2), send(topic, 4)] == [5, 7]
    assert values(topic) == [0, 1, 0, 1, 900, 2, 3, 4, 5]


def test_a_failed_log_settles_every_copy_and_a_restart_tells_what_was_stored(topic: Topic, disk: FaultyDisk) -> None:
    answers = Answers(topic)
    with topic.log._io:
        answers.begin(1, 0)
        committer_holds_it(topic)
        answers.begin(2, 0)
        answers.begin(3, 2)
        disk.fail("sync", errno.EIO, after=1)
    answers.wait(3)
    assert {type(answer) for answer in answers.settled.values()} == {LogFailed}
    with pytest.raises(LogFailed):
        send(topic, 0)
    recovered = opened(disk.kill()).topic(TOPIC)
    state = recovered.open_producer("p")
    assert state.next_sequence == recovered.stats().end
    assert send(recovered, state.next_sequence, epoch=state.epoch) == state.next_sequence
    assert values(recovered) == list(range(state.next_sequence + 2))


def test_a_full_queue_leaves_no_trace_of_what_it_refused(disk: FaultyDisk) -> None:
    storage = opened(disk, queue_bytes_max=400)
    topic = storage.create_topic(TOPIC, schema=SCHEMA)
    answers = Answers(topic)
    with topic.log._io:
        answers.begin_plain(0)
        committer_holds_it(topic)
        answers.begin(1, 0, 1)
        with pytest.raises(Overloaded):
            answers.begin(2, 1, 1)
        answers.begin(3, 0, 1)  # takes no room
    assert answers.wait(3) == {0: 0, 1: 1, 3: 1}
    assert send(topic, 1, 1) == 2


def test_taking_a_name_waits_for_what_the_last_client_has_on_its_way(topic: Topic) -> None:
    answers = Answers(topic)
    states: list[ProducerState] = []
    hold_commits(topic)
    answers.begin(1, 0)
    taking = threading.Thread(target=lambda: states.append(topic.open_producer("p")))
    taking.start()
    while topic.producer_state("p") is None:  # until the name is taken
        assert taking.is_alive()
    with pytest.raises(ProducerFenced):
        answers.begin(2, 2)
    topic.log.commit_in_pool()
    taking.join(30)
    assert states == [ProducerState(1, 2)]


def test_of_some_that_take_a_name_at_once_the_last_has_it_and_the_others_are_told(topic: Topic) -> None:
    answers = Answers(topic)
    states: list[ProducerState] = []
    refused: list[tuple[int, int]] = []

    def take() -> None:
        try:
            states.append(topic.open_producer("p"))
        except ProducerFenced as error:
            refused.append((error.epoch, error.current))

    hold_commits(topic)
    answers.begin(1, 0)
    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    while (state := topic.producer_state("p")) is None or state.epoch < 4:
        assert all(thread.is_alive() for thread in threads)
    topic.log.commit_in_pool()
    for thread in threads:
        thread.join(30)
    assert states == [ProducerState(4, 2)]
    assert sorted(refused) == [(1, 4), (2, 4), (3, 4)]


def test_a_producer_forgotten_while_it_sends_goes_on_where_it_was(topic: Topic) -> None:
    send(topic, 0)
    answers = Answers(topic)
    hold_commits(topic)
    answers.begin(1, 2)
    for number in range(PRODUCERS_MAX):
        topic.log._sequencer.producers.open(f"other {number}")
    assert topic.producer_state("p") is None
    taken: list[ProducerState] = []
    taking = threading.Thread(target=lambda: taken.append(topic.open_producer("p")))
    taking.start()
    while topic.producer_state("p") is None:
        assert taking.is_alive()
    topic.log.commit_in_pool()
    taking.join(30)
    assert taken == [ProducerState(2**32 + 1, 4)]


def test_one_that_is_forgotten_while_it_is_opened_is_not_told_half_of_it(topic: Topic) -> None:
    """What was on its way is stored, and nobody knows any more that it was this client's."""
    first = topic.open_producer("p", client="a")
    answers = Answers(topic)
    hold_commits(topic)
    answers.begin(1, 0)
    told: list[type] = []

    def take() -> None:
        try:
            topic.log.open_producer("p", ProducerOpening("a", held=first.epoch))
        except FrazilError as error:
            told.append(type(error))

    taking = threading.Thread(target=take)
    taking.start()
    while topic.log._sequencer.producers.get("p").stream < 2:  # type: ignore[union-attr]
        assert taking.is_alive()
    with topic.log._io:  # the open waits for its batch, and others come meanwhile
        topic.log.commit_in_pool()
        committer_holds_it(topic)
        for number in range(PRODUCERS_MAX):
            topic.log._sequencer.producers.open(f"other {number}")
        part = topic.log._sequencer.waiting.pop("p")[0]
        part.settle(0, None)
        taking.join(30)
        topic.log._sequencer.waiting["p"] = [part]
    assert told == [TryLater]


def test_many_copies_at_once_are_one_batch(topic: Topic) -> None:
    barrier = threading.Barrier(4)
    offsets: list[list[int]] = [[], [], [], []]

    def work(mine: list[int]) -> None:
        for number in range(60):
            barrier.wait(30)
            mine.append(send(topic, 2 * number))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in offsets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert offsets == [[2 * number for number in range(60)]] * 4
    assert values(topic) == list(range(120))


def test_a_task_gets_the_answer_of_the_first_time(topic: Topic) -> None:
    async def publish() -> list[int]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(3)]

        def tell(part: Part) -> None:
            for future in part.tokens:
                loop.call_soon_threadsafe(future.set_result, part.offset_at(0))

        for future in futures:
            topic.begin_publish_many(numbers(0, 2), tell, future, Sent("p", 0, 0))
        return await asyncio.gather(*futures)

    assert asyncio.run(publish()) == [0, 0, 0]
    assert topic.stats().end == 2


def test_a_client_that_reconnects_needs_nobody_who_stores_names(topic: Topic) -> None:
    """In a cluster they are stored where the next owner finds them, which may be away just then."""
    told: list[int] = []
    topic.log.on_producers = lambda record: told.append(len(record.epochs))
    opened = topic.log.open_producer("p", ProducerOpening("a")).state
    assert told == [1]

    def is_away(_: object) -> None:
        raise MetadataUnavailable("http://etcd:2379", "it does not answer")

    topic.log.on_producers = is_away
    assert topic.log.open_producer("p", ProducerOpening("a", held=opened.epoch)).resumed
    with pytest.raises(MetadataUnavailable):
        topic.log.open_producer("q", ProducerOpening("b"))
    topic.log.on_producers = lambda record: told.append(len(record.epochs))
    topic.log.open_producer("p", ProducerOpening("a", held=opened.epoch))
    assert told == [1, 2], "q has its name, and nobody was told"
