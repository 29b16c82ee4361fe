"""A mover over Spark Connect: python connect_child.py FOLDER STATEMENTS PAYLOADS, both as JSON; prints the errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from topics import Lake

from frazil.pipeline.spark.session import open_session, spark_place


def main(folder: Path, statements: dict[str, str], payloads: list[str]) -> None:
    session = open_session(spark_place(remote="local[2]"))
    bad = {"/shop/bad": "select cast(cast(_payload as string) as int) as n from topic"}
    lake = Lake(folder, session, {name: {"sql": text} for name, text in {**statements, **bad}.items()})
    for topic in (*statements, *bad):
        lake.publish(topic, *(payload.encode() for payload in payloads))
    report = lake.move()
    session.stop()
    print(json.dumps({name: topic.error for name, topic in report.topics.items() if topic.error}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))
