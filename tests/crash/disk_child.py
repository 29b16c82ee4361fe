"""Publishes from several threads, or tasks, until the disk refuses; says what was acknowledged and how it ended."""

from __future__ import annotations

import asyncio
import json
import sys
import threading

import frazil.aio
from frazil import FrazilError, Settings, WalSettings

TOPIC = "/crash/messages"


def main(folder: str, face: str, count: int) -> None:
    settings = Settings(data=folder, wal=WalSettings(max_file_size=64 * 1024, cache_capacity=0))
    acknowledged: dict[int, str] = {}
    errors: list[str] = []

    def payload(worker: int, number: int) -> str:
        return f"{worker}.{number}." + "x" * 2_000

    def publish_from_thread(worker: int) -> None:
        for number in range(count):
            try:
                acknowledged[topic.publish(payload(worker, number))] = f"{worker}.{number}"
            except FrazilError as error:
                errors.append(type(error).__name__)

    async def publish_from_task(topic: frazil.aio.Topic, worker: int) -> None:
        for number in range(count):
            try:
                acknowledged[await topic.publish(payload(worker, number))] = f"{worker}.{number}"
            except FrazilError as error:
                errors.append(type(error).__name__)

    async def publish_from_tasks() -> None:
        wrapped = frazil.aio.Topic(topic)
        await asyncio.gather(*(publish_from_task(wrapped, worker) for worker in range(4)))

    storage = frazil.open(settings)
    topic = storage.topic(TOPIC)
    if face == "threads":
        threads = [threading.Thread(target=publish_from_thread, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        asyncio.run(publish_from_tasks())
    try:
        topic.publish("later")
        later = "acknowledged"
    except FrazilError as error:
        later = type(error).__name__
    readable = {message.offset: message.payload.decode().rsplit(".", 1)[0] for message in topic.read("earliest")}
    storage.close()
    print(json.dumps({"acknowledged": acknowledged, "errors": errors, "later": later, "readable": readable}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
