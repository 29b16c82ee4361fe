"""Errors of who looks at topics, subscriptions and tables from outside, and changes them."""

from __future__ import annotations

from frazil.core.error import FrazilError


class SubscriptionNotFound(FrazilError):
    code = "subscription_not_found"

    def __init__(self, topic: str, subscription: str) -> None:
        super().__init__(
            f"{topic} has no subscription {subscription!a:.300}; a consumer makes it when it subscribes",
            topic=topic,
            subscription=subscription,
        )


class TableNotFound(FrazilError):
    code = "table_not_found"

    def __init__(self, table: str) -> None:
        super().__init__(
            f"there is no table {table}; see `frazil table list`, or move rows with `frazil pipeline run`", table=table
        )


class JobNotFound(FrazilError):
    """Only the last ones are kept, and none after a restart."""

    code = "job_not_found"

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no job {job!a:.80}; start another", job=job)


class TopicInUse(FrazilError):
    """What has subscriptions or producers goes only if that was said."""

    code = "topic_in_use"

    def __init__(self, topic: str, subscriptions: int, producers: int) -> None:
        super().__init__(
            f"{topic} has {subscriptions} subscription(s) and {producers} producer(s), which would go with it; "
            "add force=true to delete it all the same",
            topic=topic,
            subscriptions=subscriptions,
            producers=producers,
        )


class BrokerOff(FrazilError):
    """Producers, subscriptions and schemas are the broker's."""

    code = "broker_off"

    def __init__(self) -> None:
        super().__init__(
            "the broker is off, and only it knows of this; set `broker.enabled: true` and start `frazil serve` again",
            setting="broker.enabled",
        )
