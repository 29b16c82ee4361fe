"""The caller's current span as a W3C traceparent, so that the owner's spans continue the caller's trace.

This module does not import OpenTelemetry: a program with a current span has imported it, and any other program pays for
one dictionary lookup.
"""

from __future__ import annotations

import sys

PARENT = "traceparent"


def current_parent() -> str | None:
    """Return None if no span is current, or if the propagator is not W3C's."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or not api.get_current_span().get_span_context().is_valid:
        return None
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get(PARENT)
