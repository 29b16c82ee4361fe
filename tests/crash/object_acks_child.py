"""Publishes to a topic of ack level `object` until it is killed; tells what is there, what was acknowledged, and every
row that a reader saw before it was in the object store.

    object_acks_child.py SETTINGS    as JSON
"""

from __future__ import annotations

import json
import sys
import threading
import uuid

import frazil
from frazil.core.settings import make_settings
from frazil.objects.loading import load_objects
from frazil.objects.opening import open_objects

TOPIC = "/shop/orders"
THREADS = 4
_telling = threading.Lock()


def tell(*words: object) -> None:
    with _telling:
        print(*words, flush=True)


def publish(topic: frazil.Topic) -> None:
    while True:
        payloads = [uuid.uuid4().hex for _ in range(3)]
        for offset, payload in zip(topic.publish_many(payloads), payloads, strict=True):
            tell("ack", offset, payload)


def watch(topic: frazil.Topic, start: int) -> None:
    """Compare what a reader gets with what the store has, as another process finds it."""
    store = open_objects(SETTINGS)
    stored = 0
    for batch in topic.read_batches(start, follow=True):
        end = batch.column("_offset")[-1].as_py() + 1
        if end > stored:
            stored = load_objects(store, topic.log.log_id, None).end
        if end > stored:
            tell("early", end, stored)


SETTINGS = make_settings(json.loads(sys.argv[1]))

with frazil.open(SETTINGS) as storage:
    if TOPIC not in storage.topics():
        storage.create_topic(TOPIC, ack="object")
    topic = storage.topic(TOPIC)
    topic.publish(b"start")  # behind the rows that the last process has left in the files
    for message in topic.read():
        tell("row", message.offset, message.payload.decode())
    tell("shown")
    threading.Thread(target=watch, args=(topic, topic.stats().end), daemon=True).start()
    for _ in range(THREADS):
        threading.Thread(target=publish, args=(topic,), daemon=True).start()
    threading.Event().wait()
