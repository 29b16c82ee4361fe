"""The actions of the Flight door, as `list_actions` describes them, and the rights that they need.

Bodies and results are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from frazil.core.access import SERVER, Action, Right
from frazil.core.principal import Principal

ABOUT = {
    "logs": "every log: its id, durable end and files; no body",
    "topics": "the names of all topics; no body",
    "brokers": "the brokers of the cluster, with the addresses of their Flight doors; no body",
    "topic": '{"topic", "schema", "create"}: id, columns and limits of a topic; "create" creates a missing one',
    "create_topic": '{"topic", "schema", "retention", "ack"}: a schema is serialized by Arrow, as base64',
    "create_partitions": '{"topic", "partitions", "retention", "ack"}: create a topic with partitions',
    "delete_topic": '{"topic", "force"}: delete a topic',
    "change_schema": '{"topic", "schema"}: add columns to a typed topic, or widen them',
    "set_retention": '{"topic", "retention"}: set the retention of a topic; null for that of the settings',
    "topic_stats": '{"topic"}: statistics of a topic over all tiers',
    "flush": '{"topic" or "dataset", "table"; "offset", "timeout_ms"}: wait until rows are in the table',
    "stats": '{"topic" or "dataset", "table"}: statistics of a table and its topic over all tiers',
    "topic_logs": '{"topic", "files"}: what is durable of a topic and its partitions here, and who has the others',
    "topic_sync": '{"topic"}: make all written rows durable',
    "producer": '{"topic", "log_id", "producer"}: the epoch of a producer name, -1 if no client has it',
    "lead": "for movers: request the lease",
    "give_up": "for movers: release the lease",
    "tell": "for movers: report the status of the tables",
    "tenants": "for movers: the records of tenants; no body",
}


class FlightAction(NamedTuple):
    """`needs` returns the rights for a body, `run` the answer to it. `run` is called in a thread.

    Without `run` the action waits, which the door does without a thread.
    """

    needs: Callable[[bytes], Sequence[Right]]
    run: Callable[[Principal, bytes], bytes] | None


def operate(_: bytes) -> Sequence[Right]:
    """For movers and operators."""
    return (Right(Action.OPERATE, SERVER),)


def identified(_: bytes) -> Sequence[Right]:
    """For every identified caller."""
    return ()
