"""Check that rows have the expected offsets, in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.core.offsets import OffsetRange


def is_contiguous(batch: pa.RecordBatch, at: int) -> bool:
    """Whether the batch holds exactly the offsets from `at` on."""
    offsets = batch.column(0).to_numpy(zero_copy_only=False)
    count = len(offsets)
    return bool(offsets[0] == at and offsets[-1] == at + count - 1 and (np.diff(offsets) == 1).all())


def is_rising(batch: pa.RecordBatch) -> bool:
    return bool((np.diff(batch.column(0).to_numpy(zero_copy_only=False)) > 0).all())


def first_problem(batch: pa.RecordBatch, window: OffsetRange) -> tuple[int, str]:
    """Return the first missing or duplicate offset of a sorted window, and the problem."""
    offsets = batch.column(0).to_numpy(zero_copy_only=False)
    doubles = offsets[1:][np.diff(offsets) == 0]
    missing = np.setdiff1d(np.arange(window.start, window.end), offsets)
    if len(doubles) and (not len(missing) or doubles[0] < missing[0]):
        return int(doubles[0]), f"offset {doubles[0]} is there more than once"
    first = int(missing[0])
    run = int(np.argmax(np.append(np.diff(missing) != 1, True))) + 1
    return first, f"offsets {first} up to {first + run} are missing"
