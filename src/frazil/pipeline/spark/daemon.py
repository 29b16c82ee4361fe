"""The process that an embedded Spark forks its Python workers from; it imports what tasks need once, before the fork.

Spark's own daemon imports PySpark alone: each worker then imports Frazil and PyArrow again, which takes most of a
second. There is a worker for each core, and one that was idle for a minute ends.

Imports must start no thread: a fork would copy its locks and not the thread.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

import frazil.pipeline.move.tasks  # noqa: F401 - for the workers

if __name__ == "__main__":
    gc.freeze()  # a collection in a worker would copy the pages of all that was imported
    manager()  # type: ignore[no-untyped-call]
