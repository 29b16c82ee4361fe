"""A mover over Spark Connect: python connect_child.py FOLDER ADDRESS; prints its errors, and what Spark computes.

The results are of the statements of these topics over the rows of `/shop/raw`, in the order and form of `ordered`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from topics import PAYLOADS, STATEMENTS, TIMES, Lake, computed, ordered

from frazil.pipeline.spark.session import open_session, spark_place

TOPICS = ("/shop/typed", "/shop/counted")


def main(folder: Path, address: str) -> None:
    session = open_session(spark_place(remote=address))
    statements = {topic: STATEMENTS[topic] for topic in TOPICS}
    bad = {"/shop/bad": "select cast(cast(_payload as string) as int) as n from topic"}
    lake = Lake(folder, session, {name: {"sql": text} for name, text in {**statements, **bad}.items()})
    for topic in (*statements, *bad, "/shop/raw"):
        lake.publish(topic, *PAYLOADS)
    report = lake.move()
    errors = {name: topic.error for name, topic in report.topics.items() if topic.error}
    raw = lake.table("/shop/raw")
    results = {topic: ordered(computed(session, raw, text), TIMES) for topic, text in statements.items()}
    session.stop()
    print(json.dumps({"errors": errors, "results": results}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
