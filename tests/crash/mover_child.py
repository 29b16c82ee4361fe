"""A child that owns a folder, publishes without pause and moves what it published; to be killed at any moment.

python mover_child.py FOLDER publish     publish and move until killed
python mover_child.py FOLDER drain       move all that is left, then print the ends of the topics and exit

With a third word, `statement`, there is one topic, and its table holds the result of a statement; the fourth is the
address of a Spark Connect server. With `here`, tasks run in this process instead of in Spark.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings.lake import WriterSettings
from frazil.core.settings.topics import TopicSettings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.jobs import JobRunner
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.spark.jobs import SparkJobs
from frazil.pipeline.spark.session import open_session, spark_place, warm_up
from frazil.testing.jobs import InProcessJobs

EVEN = "/crash/even"
STATEMENT = "select _offset, _topic_partition, _payload from topic where _offset % 2 = 0"
TOPICS = ("/crash/one", "/crash/two", "/crash/three-part-0", "/crash/three-part-1")


def payload(topic: str, offset: int) -> bytes:
    return f"{topic}#{offset}#".encode() + b"x" * (offset % 300)


def main(folder: Path, what: str, how: str, remote: str | None) -> None:
    wal = frazil.WalSettings(max_file_size=256 * 1024)
    settings = frazil.Settings(
        data=folder,
        wal=wal,
        writer=WriterSettings(max_memory_bytes=4 * 1024 * 1024),
        topics={EVEN: TopicSettings(sql=STATEMENT)},
    )
    jobs = InProcessJobs() if how == "here" else spark_jobs(settings, remote)
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    with frazil.open(settings) as storage:
        topics = [storage.topic(name) for name in ((EVEN,) if how == "statement" else TOPICS)]
        mover = Mover(settings, OwnLogs(storage), tables, jobs, SystemClock(), lambda _: None)
        if what == "drain":
            while mover.tick(all_of_it=True).lag_rows:
                pass
            print(json.dumps({topic.name: topic.stats().end for topic in topics}), flush=True)
            return
        stop = threading.Event()
        threading.Thread(target=publish, args=(topics, stop), daemon=True).start()
        while True:
            report = mover.tick(all_of_it=True)
            print(json.dumps({"rows": report.rows, "lag": report.lag_rows}), flush=True)


def spark_jobs(settings: frazil.Settings, remote: str | None) -> JobRunner:
    session = open_session(spark_place(None if remote else "local[2]", remote))
    warm_up(session)
    return SparkJobs(session, settings)


def publish(topics: list[frazil.Topic], stop: threading.Event) -> None:
    while not stop.wait(0.02):
        for topic in topics:
            end = topic.log.visible_end  # `stats()` asks the catalog
            topic.publish_many([payload(topic.name, offset) for offset in range(end, end + 200)])


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), words[1], words[2] if len(words) > 2 else "spark", words[3] if len(words) > 3 else None)
