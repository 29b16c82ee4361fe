"""Keys that other parts store for a topic, which must be deleted with it."""

from __future__ import annotations

from collections.abc import Collection

from frazil.core.names import TopicName


class Companion:
    """The default: no other part stores anything."""

    def keys(self, name: TopicName) -> Collection[str]:  # noqa: ARG002 - of whatever topic
        """Return keys of the metadata store that are deleted together with the broker's records of
        a topic. May block."""
        return ()

    def forgotten(self, name: TopicName) -> None:
        """Called after they were deleted."""
