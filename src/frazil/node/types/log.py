"""Types of the log that doors translate: doors import only the Node, not the layers below."""

from frazil.core.stored_objects import held_from
from frazil.log.folder.former import cut_since
from frazil.log.info import as_json
from frazil.log.metrics import Histogram, LogMetrics
from frazil.log.read.positions import Start, resolve_start
from frazil.log.read.reader import BatchReader
from frazil.log.stats import TopicStats
from frazil.log.storage import Storage
from frazil.log.summary import summed, total
from frazil.log.topic import Topic
from frazil.log.topic_log import TopicLog
from frazil.log.write.group import Part, call_on
from frazil.log.write.publishing import GIVEN, check_safe

__all__ = [
    "GIVEN",
    "BatchReader",
    "Histogram",
    "LogMetrics",
    "Part",
    "Start",
    "Storage",
    "Topic",
    "TopicLog",
    "TopicStats",
    "as_json",
    "call_on",
    "check_safe",
    "cut_since",
    "held_from",
    "resolve_start",
    "summed",
    "total",
]
