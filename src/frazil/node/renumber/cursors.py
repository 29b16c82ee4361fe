"""Set stored positions of subscriptions and readers back to an offset, for a log whose rows get other offsets.

Above the cut a position may refer to rows of the log or of its table; which is not stored. So everything above it is
delivered again, and nothing is skipped. Setting a position back too far only costs redeliveries.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.offsets import Place
from frazil.core.settings import Settings
from frazil.meta.opening import has_meta, open_meta
from frazil.node.retention.subscriptions import stored_progress


@dataclass(frozen=True, slots=True)
class Lowered:
    """A subscription, its first undone offset, and the offset at which it continues."""

    subscription: str
    offset: int
    goes_on_at: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def cursors_above(settings: Settings, topic: TopicName, cut: int) -> tuple[Lowered, ...]:
    """Return those that `lower_cursors` would set back, without changes."""
    if not has_meta(settings):
        return ()
    with contextlib.closing(open_meta(settings)) as meta:
        return tuple(
            Lowered(name, _offset(key, value), cut)
            for name, (key, value) in sorted(stored_progress(meta, topic).items())
            if _offset(key, value) > cut
        )


def lower_cursors(settings: Settings, topic: TopicName, cut: int) -> None:
    """Durable when it returns. Answers to earlier deliveries are ignored from then on."""
    if not has_meta(settings):
        return
    with contextlib.closing(open_meta(settings)) as meta:
        found = stored_progress(meta, topic).values()
        if found:
            meta.put_all({key: json.dumps(_lowered(key, value, cut)).encode() for key, value in found})


def _lowered(key: str, value: dict[str, Any], cut: int) -> dict[str, Any]:
    lowered = {name: what for name, what in value.items() if name not in ("incarnation", *Place._fields)}
    lowered["offset"] = min(_offset(key, value), cut)
    if "acked" in value:
        lowered["acked"] = [[start, min(end, cut)] for start, end in value["acked"] if start < cut]
    if "attempts" in value:
        lowered["attempts"] = {offset: count for offset, count in value["attempts"].items() if int(offset) < cut}
    return lowered


def _offset(key: str, value: dict[str, Any]) -> int:
    offset = value.get("offset")
    if not isinstance(offset, int):
        raise FrazilError(f"the metadata store holds no offset at {key}", key=key)
    return offset
