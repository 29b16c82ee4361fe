"""The base class of requests that Flight clients send as JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FlightRequest(BaseModel):
    """A request: frozen, strictly typed, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
