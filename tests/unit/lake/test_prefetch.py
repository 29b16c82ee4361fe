"""Reading ahead: all in order, the first batch as soon as can be, then as far ahead as was asked and no further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import frazil.lake.read.prefetch
from frazil.lake.read.prefetch import Prefetcher, Work


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


class Pieces:
    """Pieces of two batches each, which tell when they begin, and may be held up at their start."""

    def __init__(self, count: int) -> None:
        self.begun = [threading.Event() for _ in range(count)]
        self.may_go = [threading.Event() for _ in range(count)]

    def work(self) -> Iterator[Work]:
        return (self._piece(number) for number in range(len(self.begun)))

    def let_go(self) -> None:
        for event in self.may_go:
            event.set()

    def _piece(self, number: int) -> Callable[[], Iterator[pa.RecordBatch]]:
        def batches() -> Iterator[pa.RecordBatch]:
            self.begun[number].set()
            assert self.may_go[number].wait(30)
            yield batch(2 * number)
            yield batch(2 * number + 1)

        return batches


def numbers(ahead: Prefetcher) -> list[int]:
    return [each.column(0)[0].as_py() for each in ahead]


def test_batches_come_in_the_order_of_their_pieces() -> None:
    pieces = Pieces(20)
    pieces.let_go()
    assert numbers(Prefetcher(pieces.work(), threads=4, ahead=3)) == list(range(40))


def test_one_piece_is_read_beside_the_first_until_that_has_a_batch() -> None:
    pieces = Pieces(6)
    ahead = Prefetcher(pieces.work(), threads=4, ahead=3)
    found: list[pa.RecordBatch] = []
    reader = threading.Thread(target=lambda: found.append(next(ahead)))
    reader.start()
    assert pieces.begun[0].wait(30)
    assert pieces.begun[1].wait(30)
    assert not any(event.wait(0.05) for event in pieces.begun[2:])
    pieces.may_go[0].set()
    reader.join(30)
    assert found[0].column(0)[0].as_py() == 0
    assert all(event.wait(30) for event in pieces.begun[1:4])  # at once, not when the next batch is asked for
    assert not pieces.begun[4].is_set()
    pieces.let_go()
    assert numbers(ahead) == list(range(1, 12))


def test_a_first_piece_without_rows_is_not_the_end() -> None:
    pieces: list[Work] = [lambda: iter(()), lambda: iter([batch(7)])]
    assert numbers(Prefetcher(pieces, threads=1, ahead=1)) == [7]


def test_without_pieces_there_is_nothing() -> None:
    assert numbers(Prefetcher([], threads=1, ahead=1)) == []


def test_the_next_piece_is_made_ready_and_no_more_is_held_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    size, threads = batch(0).nbytes, 4
    monkeypatch.setattr(frazil.lake.read.prefetch, "FIRST_BYTES_MAX", 2 * size)
    monkeypatch.setattr(frazil.lake.read.prefetch, "AHEAD_BYTES_MAX", 8 * size)
    guard, made, taken, held = threading.Lock(), [0] * 4, 0, []
    next_is_ready = threading.Event()

    def piece(number: int) -> Work:
        def batches() -> Iterator[pa.RecordBatch]:
            for each in range(50):
                with guard:
                    made[number] += 1
                    held.append(sum(made) - taken)
                    if made[1] > 2:  # whoever comes first: those behind it may hold 4, and the first piece 2, of 8
                        next_is_ready.set()
                yield batch(50 * number + each)

        return batches

    ahead = Prefetcher((piece(number) for number in range(4)), threads, ahead=3)
    found = []
    for each in ahead:
        with guard:
            taken += 1
        found.append(each.column(0)[0].as_py())
        if len(found) == 1:
            assert next_is_ready.wait(30), "the next piece goes on while the first waits for its reader"
    assert found == list(range(200))
    assert max(held) <= 2 + 8 + threads + 1, "what is held, one in the hands of each thread, one in the reader's"
