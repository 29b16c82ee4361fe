"""What other parts store of a topic, which must go with it."""

from __future__ import annotations

from collections.abc import Collection

from frazil.core.names import TopicName


class Companion:
    """Nothing, where no other part stores anything."""

    def keys(self, name: TopicName) -> Collection[str]:  # noqa: ARG002 - of whatever topic
        """Keys of the metadata store that are deleted together with what the broker stores of a topic. May block."""
        return ()

    def forgotten(self, name: TopicName) -> None:
        """They are deleted."""
