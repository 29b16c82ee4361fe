"""The proof of one topic, or of all: who is asked, what is read, and how far it is."""

from __future__ import annotations

from collections.abc import Callable

from frazil.core.errors import CorruptLog, LakeUnavailable, TableRefused, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.history import TableHistories, TableHistory
from frazil.log.info import LogInfo
from frazil.topics.logs import LogView, open_view
from frazil.topics.verify import AskLog, Proof, verify

Advance = Callable[[int], None]
Begin = Callable[[int], Advance]
"""Told how many rows there are to look at, about; what it returns is told of each that was."""


def prove(settings: Settings, topic: str | None, begin: Begin) -> list[Proof]:
    """What the owner of the folder says is durable, and its files, against the tables."""
    histories = TableHistories(settings)
    with open_view(settings) as logs:
        wanted = [(info, histories.of(info.topic, info.log_id)) for info in _wanted(logs, topic)]
        advance = begin(sum(_rows(info, history) for info, history in wanted))
        return [verify(_asker(logs, info), logs.read, history, advance) for info, history in wanted]


def _rows(info: LogInfo, history: TableHistory | None) -> int:
    """What a walk looks at: rows of the table twice, for their offsets and their content, then those of the log."""
    try:
        found = None if history is None else history.look()
    except (TableRefused, LakeUnavailable):
        found = None  # the walk is for telling that
    table_end = 0 if found is None else found[1]
    return 2 * table_end + max(0, info.durable_end - max(info.first_offset, table_end))


def _wanted(logs: LogView, topic: str | None) -> list[LogInfo]:
    infos = logs.logs()
    problems = getattr(logs, "problems", {})
    if topic is None:
        if problems:
            name, why = next(iter(problems.items()))
            raise CorruptLog(name, 0, why)
        return infos
    name = TopicName.parse(topic)
    if str(name) in problems:
        raise CorruptLog(str(name), 0, problems[str(name)])
    found = [info for info in infos if info.topic == name]
    if not found:
        raise TopicNotFound(topic)
    return found


def _asker(logs: LogView, info: LogInfo) -> AskLog:
    def ask() -> LogInfo:
        found = next((each for each in logs.logs() if each.log_id == info.log_id), None)
        if found is None:
            raise TopicNotFound(str(info.topic))
        return found

    return ask
