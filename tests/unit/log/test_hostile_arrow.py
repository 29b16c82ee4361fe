"""Arrow messages changed at random, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MUTATE = """
import random, sys
import pyarrow as pa
sys.path.insert(0, {folder!r})
from segment_files import make_log, frames_of
from frazil import CorruptLog
from frazil.core.rows import ENVELOPE, Origin, message_batch
from frazil.log.format.frames import Frame, pack_head, pack_rows, producers_text, sent_text, unpack_batch, unpack_head
from frazil.log.write.producers import BadProducers, Producers, sent_from_text

rng = random.Random({seed})
origins = [Origin("p", 1, 2, 3), Origin(publish_time_us=2)]
messages = message_batch([b"tea", b""], [b"k", None], [[("a", "b")], None], origins, 3)
log = make_log(1)
head, first = frames_of(log.disk, log.last)[:2]
numbers = unpack_head("s", head).schema
cases = [(bytes(messages.serialize()), ENVELOPE), (bytes(first.payload), numbers), (bytes(head.payload), None)]
options = pa.ipc.IpcWriteOptions(compression="lz4")
sink = pa.BufferOutputStream()
with pa.ipc.new_stream(sink, ENVELOPE, options=options) as writer:
    writer.write_batch(messages)
reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
reader.read_next_message()
cases.append((bytes(reader.read_next_message().serialize()), ENVELOPE))
numbered = pack_rows(messages, b'[[0,1,"p",0,0],[1,1,"q",7,9]]')
cases.append((bytes(numbered), ENVELOPE))
table = pack_head(9, unpack_head("s", head), b'{{"floor":1,"producers":[["p",0,5,[1,2,3,3]]]}}')
cases.append((table[16:], None))
refused = read = 0
for number in range({count}):
    payload, schema = cases[number % len(cases)]
    data = bytearray(payload)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif kind == 2:
            at -= at % 4
            word = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)])
            data[at:at + 4] = word.to_bytes(4, "little")
        else:
            at -= at % 8
            data[at:at + 8] = rng.choice([0, 1, 2**62, 2**63, 2**64 - 1, rng.randrange(4096)]).to_bytes(8, "little")
    data = data[:len(payload)]
    frame = Frame(0, 0, memoryview(bytes(data)))
    print(number, flush=False)
    try:
        if schema is None:
            unpack_head("s", frame)
            Producers.from_text(producers_text(frame) or b'{{"floor":0,"producers":[]}}', 9)
        else:
            rows = unpack_batch("s", frame, schema)
            sent_from_text(sent_text("s", frame, schema) or b"[]", rows.num_rows)
            for column in rows.columns:
                column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column.to_pylist()
        read += 1
    except (CorruptLog, BadProducers):
        refused += 1
print("done", refused, read, flush=True)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_arrow_messages_end_in_a_typed_error_or_valid_rows_and_never_in_a_crash(seed: int) -> None:
    """In a process of its own, since Arrow is not Python: a crash there would be one of ours."""
    code = MUTATE.format(folder=str(Path(__file__).parent), seed=seed, count=30_000)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, f"{run.stdout[-200:]}{run.stderr[-2_000:]}"
    done, refused, read = run.stdout.splitlines()[-1].split()
    assert done == "done"
    assert int(refused) > 1_000
    assert int(read) > 1_000
