"""Keys of the broker's records in the metadata store, for the broker and for read-only processes.

The records that say what a topic is are in `meta.topic_records`.

    /broker/owner, /broker/session                                                see `frazil.broker.store.claim`
    /broker/namespaces/{namespace}                                                {}
    /broker/topics/{namespace}/{topic}                                            {"reliable", "log_id"}
    /broker/producers/{namespace}/{topic}/{producer}                              {"id"}
    /broker/producers/{namespace}/{topic}/{producer}/{principal}                  {"id"}: created with security on
    /broker/subscriptions/{namespace}/{topic}/{subscription}                      {"kind", "policy"}
    /broker/consumers/{namespace}/{topic}/{subscription}/{consumer}               {"id", "key_filters", "principal"}
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}  {"offset", "acked", …}: `stored_form`
    /producers/{log id}                                                           see `node.member.taken_names`

Names may contain any character, so they are percent-encoded.
"""

from __future__ import annotations

from urllib.parse import quote

from frazil.core.names import TopicName

TOPICS, PRODUCERS, SUBSCRIPTIONS, CONSUMERS = (
    f"/broker/{what}/" for what in ("topics", "producers", "subscriptions", "consumers")
)
NAMESPACES = "/broker/namespaces/"
OWNER, SESSION = "/broker/owner", "/broker/session"
TAKEN_NAMES = "/producers/"
PROGRESS = "/persistent_storage/iceberg/subscriptions/"


def topic_key(prefix: str, topic: TopicName, *names: str) -> str:
    return prefix + "/".join([topic.namespace, topic.topic, *(quoted(name) for name in names)])


def progress_key(subscription: str, topic: TopicName) -> str:
    return f"{PROGRESS}{quoted(subscription)}/{topic.namespace}/{topic.topic}"


def topic_of_progress(key: str) -> TopicName:
    """Return the topic of a key of `progress_key`."""
    namespace, topic = key.split("/")[-2:]
    return TopicName(namespace, topic)


def quoted(name: str) -> str:
    return quote(name, safe="")
