"""Verify one topic or all, with progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import (
    CorruptLog,
    FrazilError,
    LakeUnavailable,
    OwnerUnreachable,
    TableRefused,
    TopicNotFound,
)
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.read.history import TableHistories, TableHistory
from frazil.log.folder.layout import topic_names
from frazil.log.info import LogInfo
from frazil.log.repair.check import read_ends
from frazil.node.tiers.logs import LogView, open_view
from frazil.node.verify.verify import AskLog, TopicProof, unreadable, verify

Advance = Callable[[int], None]
Begin = Callable[[int], Advance]
"""Called with the approximate number of rows to check; the returned function is called with progress."""


def prove(settings: Settings, topic: str | None, begin: Begin) -> list[TopicProof]:
    """Compare what the owner of the folder reports as durable, and its files, with the tables."""
    histories = TableHistories(settings)
    with open_view(settings) as logs:
        infos, others = _wanted(settings, logs, topic)
        wanted = [(info, histories.of(info.topic, info.log_id)) for info in infos]
        advance = begin(sum(_rows(info, history) for info, history in wanted))
        proofs = [_proof(logs, info, history, advance) for info, history in wanted]
        _raise_if_away(proofs)
        found = [
            _as_proof(info, proof)
            for (info, _), proof in zip(wanted, proofs, strict=True)
            if not isinstance(proof, TopicNotFound)  # deleted meanwhile
        ]
        return sorted([*found, *others], key=lambda proof: proof.topic)


def _proof(logs: LogView, info: LogInfo, history: TableHistory | None, advance: Advance) -> TopicProof | Exception:
    """An error of one topic must not leave the others unverified."""
    try:
        return verify(_asker(logs, info), logs.read, history, advance, logs.read_objects)
    except (FrazilError, OSError, pa.ArrowException) as error:
        return error


def _raise_if_away(proofs: Sequence[TopicProof | Exception]) -> None:
    """If the lake does not answer for any topic, it is not a problem of the topics."""
    if proofs and all(isinstance(proof, LakeUnavailable | OwnerUnreachable | TopicNotFound) for proof in proofs):
        (first, *_) = proofs
        assert isinstance(first, Exception)
        raise first


def _as_proof(info: LogInfo, found: TopicProof | Exception) -> TopicProof:
    if isinstance(found, TopicProof):
        return found
    why = found.message if isinstance(found, FrazilError) else str(found)
    return unreadable(str(info.topic), info.durable_end, why)


def _rows(info: LogInfo, history: TableHistory | None) -> int:
    """The rows of a walk: those of the table twice, for offsets and content, then those of the log and the objects."""
    try:
        found = None if history is None else history.look()
    except (TableRefused, LakeUnavailable):
        found = None  # the walk reports that
    table_end = 0 if found is None else found[1]
    in_objects = sum(one.end - one.first for one in info.objects)
    return 2 * table_end + max(0, info.durable_end - max(info.held_from, table_end)) + in_objects


def _wanted(settings: Settings, logs: LogView, topic: str | None) -> tuple[list[LogInfo], list[TopicProof]]:
    """Return the logs to walk, and results for topics without a readable log: those are not proven."""
    infos = logs.logs()
    others = _unreadable(settings, logs, infos)
    if topic is None:
        return infos, others
    name = TopicName.parse(topic)
    found = [info for info in infos if info.topic == name]
    others = [proof for proof in others if proof.topic == str(name)]
    if not found and not others:
        raise TopicNotFound(topic)
    return found, others


def _unreadable(settings: Settings, logs: LogView, infos: list[LogInfo]) -> list[TopicProof]:
    """Return topics of the folder that are missing from the list of logs, and logs whose files are gone.

    The folder may be remote, visible only to its owner; then the owner's list is all there is.
    """
    disk, folder = LocalDisk(), settings.log_folder
    ends, flaw = read_ends(disk, folder) if folder.is_dir() else ({}, None)
    if flaw is not None:
        raise CorruptLog(flaw.path, flaw.position, flaw.reason)
    left_out = _names(disk, folder) - {str(info.topic) for info in infos}
    ids = {info.log_id for info in infos}
    lost = {log_id: known for log_id, known in ends.items() if log_id not in ids and known["topic"] not in left_out}
    if left_out or lost:  # a second look settles what was created or deleted between the two
        again = logs.logs()
        left_out = (left_out & _names(disk, folder)) - {str(info.topic) for info in again}
        still = read_ends(disk, folder)[0].keys() - {info.log_id for info in again}
        lost = {log_id: known for log_id, known in lost.items() if log_id in still}
    problems: dict[str, str] = getattr(logs, "problems", {})
    reach = {known["topic"]: int(known["end"]) for known in ends.values()}
    return [
        *(unreadable(name, reach.get(name, 0), problems.get(name, "its log can't be opened")) for name in left_out),
        *(unreadable(one["topic"], one["end"], f"the files of log {log_id} are gone") for log_id, one in lost.items()),
    ]


def _names(disk: Disk, folder: Path) -> set[str]:
    return {str(name) for name in topic_names(disk, folder)}


def _asker(logs: LogView, info: LogInfo) -> AskLog:
    def ask() -> LogInfo:
        found = next((each for each in logs.logs() if each.log_id == info.log_id), None)
        if found is None:
            raise TopicNotFound(str(info.topic))
        return found

    return ask
