"""Errors of administrative calls on topics, subscriptions and tables."""

from __future__ import annotations

from frazil.core.errors.base import FrazilError


class SubscriptionNotFound(FrazilError):
    code = "subscription_not_found"

    def __init__(self, topic: str, subscription: str, advice: str = "a consumer creates it when it subscribes") -> None:
        super().__init__(
            f"{topic} has no subscription {subscription!a:.300}; {advice}",
            topic=topic,
            subscription=subscription,
        )

    @classmethod
    def deleted(cls, topic: str, subscription: str) -> SubscriptionNotFound:
        """The error for a consumer whose subscription was deleted."""
        return cls(topic, subscription, "it was deleted while it had a consumer; subscribe again if you need it")


class SubscriptionTaken(FrazilError):
    """An exclusive subscription belongs to its first consumer, even while that consumer is disconnected.

    With security on, the name of a consumer belongs to the principal that has used it first (`is_name`).
    """

    code = "subscription_taken"

    def __init__(self, topic: str, subscription: str, consumer: str, *, is_name: bool = False) -> None:
        problem = f"is exclusive, and {consumer} has it; use that consumer's name, or another subscription"
        if is_name:
            problem = f"has a consumer {consumer} of another principal; use another name"
        super().__init__(
            f"the subscription {subscription} of {topic} {problem}",
            topic=topic,
            subscription=subscription,
            consumer=consumer,
        )


class ConsumerReplaced(FrazilError):
    """Final for the first consumer: if it reconnected, the two would replace each other for ever."""

    code = "consumer_replaced"

    def __init__(self, topic: str, subscription: str, consumer: str) -> None:
        super().__init__(
            f"another connection has taken over as consumer {consumer!a:.300} of {subscription!a:.300} on {topic}; "
            "give each consumer its own name, or end the other one and subscribe again",
            topic=topic,
            subscription=subscription,
            consumer=consumer,
        )


class NamespaceNotFound(FrazilError):
    code = "namespace_not_found"

    def __init__(self, namespace: str) -> None:
        super().__init__(f"there is no namespace {namespace}; create it, or a topic in it", namespace=namespace)


class NamespaceExists(FrazilError):
    code = "namespace_exists"

    def __init__(self, namespace: str) -> None:
        super().__init__(f"the namespace {namespace} already exists", namespace=namespace)


class NamespaceInUse(FrazilError):
    code = "namespace_in_use"

    def __init__(self, namespace: str, topics: int) -> None:
        super().__init__(
            f"the namespace {namespace} has {topics} topic(s); delete them first", namespace=namespace, topics=topics
        )


class TableNotFound(FrazilError):
    code = "table_not_found"

    def __init__(self, table: str) -> None:
        super().__init__(
            f"there is no table {table}; see `frazil table list`, or move rows with `frazil pipeline run`", table=table
        )


class JobNotFound(FrazilError):
    """Only recent jobs are kept, and none across a restart."""

    code = "job_not_found"

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job {job!a:.80}; start another", job=job)


class TopicInUse(FrazilError):
    """A topic with subscriptions or producers is deleted only if the caller forces it."""

    code = "topic_in_use"

    def __init__(self, topic: str, subscriptions: int, producers: int) -> None:
        super().__init__(
            f"{topic} has {subscriptions} subscription(s) and {producers} producer(s), which would be deleted with it; "
            "add --force, or force=true over HTTP, to delete it anyway",
            topic=topic,
            subscriptions=subscriptions,
            producers=producers,
        )


class BrokerOff(FrazilError):
    """Producers, subscriptions and schemas belong to the broker, which is off."""

    code = "broker_off"

    def __init__(self) -> None:
        super().__init__(
            "the broker is off, and this needs it; set `broker.enabled: true` and start `frazil serve` again",
            setting="broker.enabled",
        )


class ServerNeeded(FrazilError):
    """Only a running server knows the current producers and consumers."""

    code = "server_needed"

    def __init__(self, data: str) -> None:
        super().__init__(
            f"this needs a running server, and none serves {data}; "
            "start one with `frazil serve`, or name one with --server (or FRAZIL_SERVER)",
            data=data,
        )


class ServerUnreachable(FrazilError):
    """The named server, or the owner of the folder, does not answer as Frazil does."""

    code = "server_unreachable"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            f"no server answers at {address} ({reason}); "
            "start `frazil serve` there, or fix --server (or FRAZIL_SERVER)",
            address=address,
            reason=reason,
        )
