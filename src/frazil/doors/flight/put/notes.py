"""Decode what clients send instead of Arrow batches: a few plain messages, and large batches in pieces.

The format is that of `frazil.core.put_notes`. Pieces are assembled in a byte budget that all streams share, see
`Intake.assembling`: a stream whose batch does not fit waits, without delaying batches that are sent whole.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

import grpc
from pydantic import BaseModel, ConfigDict, Field

from frazil.core.errors import BatchTooLarge, InvalidInput, TryLater
from frazil.core.put_notes import FEW_ROWS_MAX, MESSAGE_BYTES_MAX, TRACES_MAX, FewRow, few_rows, parted
from frazil.core.settings import FlightSettings
from frazil.doors.calls import Context, checked
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.wire import Received

PIECE_SECONDS_MAX = 30.0
"""Maximum time between pieces: a slower client would block the budget for others."""
ASSEMBLY_SECONDS_MAX = 300.0
"""Maximum time for all of them, whatever their size."""

Count = Annotated[int, Field(ge=0, lt=2**62)]
Length = Annotated[int, Field(ge=0, lt=2**31)]


class Note(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    sequence: Count
    time_us: int = Field(0, ge=-(2**63), lt=2**63)
    rows: list[tuple[Length, Length | None, dict[str, str] | None]] | None = Field(None, max_length=FEW_ROWS_MAX)
    bytes: int | None = Field(None, gt=0, lt=2**31)
    traces: tuple[tuple[Count, Annotated[str, Field(max_length=128)]], ...] = Field((), max_length=TRACES_MAX)


class Few(NamedTuple):
    """A few messages, and their publish time by the client's clock."""

    rows: list[FewRow]
    time_us: int


Given = Few | Received | bytes
"""A received batch: a few messages, an Arrow batch, or the Arrow message assembled from pieces."""


def noted(data: Received) -> tuple[Note, memoryview]:
    """Return the note, and the bytes after it."""
    line, following = parted(data.note)
    return parsed(Note, line, "batch", MESSAGE_BYTES_MAX), following


def few(note: Note, following: memoryview, limits: FlightSettings) -> Few:
    if len(following) > limits.batch_bytes_max:
        raise BatchTooLarge(len(following), limits.batch_bytes_max)
    try:
        return Few(few_rows(note.rows or (), following), note.time_us)
    except ValueError as error:
        raise InvalidInput(str(error), field="rows") from None


# --- pieces


def check_size(note: Note, limits: FlightSettings) -> None:
    if note.bytes is not None and note.bytes > limits.batch_bytes_max:
        raise BatchTooLarge(note.bytes, limits.batch_bytes_max)


async def assembled(context: Context, first: Note, following: memoryview) -> bytes:
    """Assemble the Arrow message that begins with this piece; the others follow on the same stream."""
    try:
        async with asyncio.timeout(ASSEMBLY_SECONDS_MAX):
            return await _assembled(context, first, following)
    except TimeoutError:
        raise TryLater(
            f"a batch was not complete after {ASSEMBLY_SECONDS_MAX:.0f} s; send smaller batches",
            limit_seconds=ASSEMBLY_SECONDS_MAX,
        ) from None


async def _assembled(context: Context, first: Note, following: memoryview) -> bytes:
    assert first.bytes is not None
    pieces, missing = [following], first.bytes - len(following)
    while missing > 0:
        try:
            data = checked(await asyncio.wait_for(context.read(), PIECE_SECONDS_MAX))
        except TimeoutError:
            raise TryLater(
                f"the next piece of a batch did not come within {PIECE_SECONDS_MAX:.0f} s; send smaller batches",
                limit_seconds=PIECE_SECONDS_MAX,
            ) from None
        if data is grpc.aio.EOF:
            raise InvalidInput(f"the stream ended {missing} bytes before its batch did", field="bytes")
        note, following = noted(data)
        if (note.sequence, note.bytes) != (first.sequence, first.bytes) or not following:
            raise InvalidInput("bytes: the next piece of the same batch was due", field="bytes")
        pieces.append(following)
        missing -= len(following)
    if missing:
        raise InvalidInput(f"bytes: the pieces have {-missing} more than they say", field="bytes")
    return b"".join(pieces)
