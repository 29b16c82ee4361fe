"""Producers to be killed that number their rows, and send again what was not acknowledged.

What a row holds follows from its producer and its number, and so does the size of the batch that begins with it: so
the next process can send the very same batch. `start` says for each producer what its client knows:
`name:epoch:first number not acknowledged`, with the epoch -1 to take the name anew.
"""

from __future__ import annotations

import os
import queue
import random
import threading

from publisher import main, say, settings

import frazil
from frazil import ProducerState, Sent
from frazil.log.write.group import Part

TOPIC = "/crash/numbered"
WINDOW = 3


def batch_of(producer: str, number: int) -> list[bytes]:
    rng = random.Random(f"{producer} {number}")
    return [
        f"{producer} {number + row} ".encode() + rng.randbytes(rng.choice([10, 500, 9_000]))
        for row in range(rng.choice([1, 1, 2, 5]))
    ]


def produce(topic: frazil.Topic, producer: str, epoch: int, number: int) -> None:
    """Up to so many batches on their way; some are sent twice, before or after the answer came."""
    answers: queue.SimpleQueue[tuple[Sent, int, Part]] = queue.SimpleQueue()
    rng = random.Random()
    waiting = 0

    def send(sent: Sent) -> int:
        rows = batch_of(producer, sent.sequence)
        return topic.begin_publish_many(rows, lambda part: answers.put((sent, len(rows), part)), None, sent)

    while True:
        while waiting < WINDOW:
            sent = Sent(producer, epoch, number)
            number += send(sent)
            waiting += 1
            if rng.random() < 0.2:
                send(sent)
                waiting += 1
        sent, rows, part = answers.get()
        waiting -= 1
        say("ack", producer, sent.sequence, part.offset_at(0), rows)
        if rng.random() < 0.1:
            send(sent)
            waiting += 1


def produce_or_end(topic: frazil.Topic, producer: str, epoch: int, number: int) -> None:
    try:
        produce(topic, producer, epoch, number)
    except BaseException as error:  # noqa: BLE001 - the parent process wants to know of any
        say("error", repr(error).replace("\n", " "))
    finally:
        os._exit(1)


def publish(folder: str, sync_mode: str, start: str) -> None:
    topic = frazil.open(settings(folder, sync_mode)).topic(TOPIC)
    threads = []
    for known in start.split(","):
        producer, epoch_text, number = known.split(":")
        epoch = int(epoch_text)
        if epoch < 0:
            state = topic.open_producer(producer, client=f"of {producer}")
            epoch = state.epoch
        else:
            state = topic.producer_state(producer) or ProducerState(-1, 0)
        say("state", producer, state.epoch, state.next_sequence)
        threads.append(threading.Thread(target=produce_or_end, args=(topic, producer, epoch, int(number))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def show(folder: str, sync_mode: str) -> None:
    with frazil.open(settings(folder, sync_mode)) as storage:
        for message in storage.topic(TOPIC).read():
            producer, number, rest = message.payload.split(b" ", 2)
            say("row", message.offset, producer.decode(), number.decode(), len(rest))


def work(what: str, folder: str, sync_mode: str, start: str) -> None:
    if what == "publish":
        publish(folder, sync_mode, start)
    else:
        show(folder, sync_mode)


if __name__ == "__main__":
    main(work)
