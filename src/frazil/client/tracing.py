"""The span in which a caller publishes, as W3C writes it; so that the owner's spans go on with the caller's trace.

OpenTelemetry is not imported here: a program in which a span is current has done so itself, and who has none pays for
one look into a dictionary.
"""

from __future__ import annotations

import sys

PARENT = "traceparent"


def current_parent() -> str | None:
    """None where no span is current, or what propagates it is not W3C's."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not api.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(PARENT)
