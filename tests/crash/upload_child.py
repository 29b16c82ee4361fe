"""A process to be killed while it publishes, uploads and removes files: acknowledged values on its output."""

from __future__ import annotations

import itertools
import os
import sys

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.node.objects.parts import ObjectParts

TOPIC = "/crash/uploads"


def settings(folder: str, *, keeps_objects: bool = True) -> Settings:
    return make_settings(
        {
            "data": f"{folder}/data",
            "wal": {"max_file_size": 64 * 1024, "cache_bytes": 0, "retention": {"bytes": 150_000}},
            "pipeline": {"enabled": False},
            "objects": {
                "enabled": True,
                "open_interval_ms": 50,
                "bytes": None if keeps_objects else 400_000,
                "store": {"type": "local", "path": f"{folder}/store"},
            },
        }
    )


def main(folder: str, what: str) -> None:
    with frazil.open(settings(folder, keeps_objects=what == "keeps")) as storage:
        topic, parts = storage.topic(TOPIC), storage.attachment
        assert isinstance(parts, ObjectParts)
        for count in itertools.count():
            offset = topic.log.durable_end
            topic.publish(f"{offset} ".encode() + os.urandom(2_000))
            os.write(1, f"{offset}\n".encode())
            if count % 50 == 49:
                storage.maintain()
                parts.retention.enforce(topic.log)


if __name__ == "__main__":
    main(*sys.argv[1:])
