"""Reading ahead: all in order, the first batch as soon as can be, then as far ahead as was asked and no further."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

from frazil.lake.ahead import Ahead, Work


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


def numbers(ahead: Ahead) -> list[int]:
    return [each.column(0)[0].as_py() for each in ahead]


def test_batches_come_in_the_order_of_their_pieces() -> None:
    pieces = Pieces(20)
    pieces.let_go()
    assert numbers(Ahead(pieces.work(), threads=4, ahead=3)) == list(range(40))


def test_nothing_is_read_ahead_while_the_first_batch_is_waited_for() -> None:
    pieces = Pieces(6)
    ahead = Ahead(pieces.work(), threads=4, ahead=3)
    found: list[pa.RecordBatch] = []
    reader = threading.Thread(target=lambda: found.append(next(ahead)))
    reader.start()
    assert pieces.begun[0].wait(30)
    assert not any(event.wait(0.05) for event in pieces.begun[1:])
    pieces.may_go[0].set()
    reader.join(30)
    assert found[0].column(0)[0].as_py() == 0
    assert all(event.wait(30) for event in pieces.begun[1:4])  # at once, not when the next batch is asked for
    assert not pieces.begun[4].is_set()
    pieces.let_go()
    assert numbers(ahead) == list(range(1, 12))


def test_a_first_piece_without_rows_is_not_the_end() -> None:
    pieces: list[Work] = [lambda: iter(()), lambda: iter([batch(7)])]
    assert numbers(Ahead(pieces, threads=1, ahead=1)) == [7]


def test_without_pieces_there_is_nothing() -> None:
    assert numbers(Ahead([], threads=1, ahead=1)) == []
