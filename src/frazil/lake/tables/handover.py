"""Hand a table over from a log to its renumbered successor: the same rows, another log id.

One pinned commit copies the table's entries of the former log to the new one, up to the same offset, and removes the
former's, so that the table still has one log for each partition. `frazil.{log id}.follows` names the former ones. It is
idempotent, so that a mover can complete it after a crash.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePropertiesUpdate

from frazil.core.errors import LakeUnavailable, TableRefused
from frazil.lake.catalogs.embedded import check_own
from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.commit import pinned_change
from frazil.lake.files.store_errors import lake_error
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import end_key, ends, followed, follows_key, move_key, read_token, sequence_key

ATTEMPTS_MAX = 8

_log = logging.getLogger("frazil.lake")


def hand_over(
    catalog: Catalog, name: TableName, former: str, end: int, log_id: str, wait: Callable[[int], None]
) -> Table:
    """Assign the former log's rows, which must end at `end`, to the new log; returns the table.

    `wait(attempt)` is called before another attempt.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        table = _loaded(catalog, name)
        if log_id in ends(table):
            return table
        check_own(catalog, table)
        _check(table, name, former, end)
        try:
            change = pinned_change(table, [], _tokens(table, former, log_id), {})
            gone = [key for key in table.metadata.properties if key.startswith(_prefix(former))]
            updates = (*change.updates, RemovePropertiesUpdate(removals=gone))
            catalog.commit_table(table, change.requirements, updates)
        except CommitFailedException as error:
            _log.info("%s: the handover was refused (%s); looking again", name, reason(error, catalog.properties))
        except Exception as error:  # noqa: BLE001 - the answer is unknown, whatever went wrong: the table is asked
            _log.warning("%s: the handover has no answer (%s); looking", name, reason(error, catalog.properties))
        wait(attempt)
    raise LakeUnavailable("catalog", f"{name} could not be handed over to log {log_id} in {ATTEMPTS_MAX} attempts")


def _loaded(catalog: Catalog, name: TableName) -> Table:
    try:
        return catalog.load_table(name.identifier)
    except Exception as error:
        raise lake_error(name, error, catalog.properties.get("warehouse", ""), catalog.properties) from error


def _check(table: Table, name: TableName, former: str, end: int) -> None:
    token = read_token(table, former)
    if token is None or token.end != end:
        has = "nothing" if token is None else f"offsets up to {token.end}"
        raise TableRefused(
            f"{name} has {has} of log {former}, and had offsets up to {end} when its topic was renumbered; rename "
            f"{name}, which keeps its rows, and the mover creates another from the log",
            table=str(name),
            log_id=former,
        )


def _tokens(table: Table, former: str, log_id: str) -> dict[str, str]:
    known = table.metadata.properties
    before = _prefix(former)
    tokens = {_prefix(log_id) + key.removeprefix(before): known[key] for key in known if key.startswith(before)}
    tokens[move_key(log_id)] = str(uuid.uuid4())
    tokens[sequence_key(log_id)] = str(table.metadata.next_sequence_number())
    tokens[follows_key(log_id)] = ",".join([*followed(table, former), former])
    return tokens


def _prefix(log_id: str) -> str:
    return end_key(log_id).removesuffix("end")
