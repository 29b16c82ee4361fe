"""Where the broker's records are in the metadata store, for the broker and for those who only look.

    /broker/owner, /broker/session                                                see `frazil.broker.claim`
    /broker/namespaces/{namespace}                                                {}
    /broker/topics/{namespace}/{topic}                                            {"reliable", "log_id"}
    /broker/producers/{namespace}/{topic}/{producer}                              {"id"}
    /broker/subscriptions/{namespace}/{topic}/{subscription}                      {"kind", "policy"}
    /broker/consumers/{namespace}/{topic}/{subscription}/{consumer}               {"id", "key_filters"}
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}  {"offset", "acked", …}: `stored_form`

Names may hold anything, so they are percent-encoded.
"""

from __future__ import annotations

from urllib.parse import quote

from frazil.core.names import TopicName

TOPICS, PRODUCERS, SUBSCRIPTIONS, CONSUMERS = (
    f"/broker/{what}/" for what in ("topics", "producers", "subscriptions", "consumers")
)
NAMESPACES = "/broker/namespaces/"
OWNER, SESSION = "/broker/owner", "/broker/session"
PROGRESS = "/persistent_storage/iceberg/subscriptions/"


def topic_key(prefix: str, topic: TopicName, *names: str) -> str:
    return prefix + "/".join([topic.namespace, topic.topic, *(quoted(name) for name in names)])


def progress_key(subscription: str, topic: TopicName) -> str:
    return f"{PROGRESS}{quoted(subscription)}/{topic.namespace}/{topic.topic}"


def quoted(name: str) -> str:
    return quote(name, safe="")
