"""A part that works on the logs of a storage beside it, such as their upload, and ends with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from frazil.core.names import TopicName


class Attachment(Protocol):
    def deleting(self, name: TopicName, log_id: Callable[[], str]) -> Callable[[], None]:
        """Called before a topic is deleted; an error prevents it. Returns what is called once the topic is gone.

        `log_id` reads the topic's record, which may be damaged.
        """
        ...

    def close(self) -> None:
        """Called once, before the logs are closed. It waits for no server."""
        ...


class NoAttachment:
    def deleting(self, name: TopicName, log_id: Callable[[], str]) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None

    def close(self) -> None:
        pass
