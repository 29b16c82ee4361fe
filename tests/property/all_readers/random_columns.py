"""Random columns of topics: odd names, every kind of type, nulls, and ways to partition a table by them."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

NAMES = [
    "unit-price", "item name", "a.b", "1st", "naïve", "A", "a", 'quo"te', "select", "x_x2D", "offset", "c'd", "Topic",
    "timestamp", "partition", "`tick`",
]  # fmt: skip
UTC = dt.timezone.utc
TIMES = st.integers(-(2**50), 2**52).map(lambda number: dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=number))  # noqa: DTZ001
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)

Kind = tuple[pa.DataType, st.SearchStrategy[Any]]


def _decimals(scale: int, digits: int) -> st.SearchStrategy[decimal.Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda number: decimal.Decimal(number).scaleb(-scale))


PLAIN: list[Kind] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**63 - 1)),
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
    (pa.timestamp("ms"), TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1_000 * 1_000))),
    (pa.decimal128(9, 2), _decimals(2, 9)),
    (pa.decimal128(38, 9), _decimals(9, 28)),
]


def _nested(kind: Kind) -> list[Kind]:
    inner, values = kind
    some = st.none() | values
    pair = pa.struct([("in-ner", inner), ("bb", pa.int32())])
    pairs = st.fixed_dictionaries({"in-ner": some, "bb": st.none() | st.just(7)})
    named = st.sampled_from("abc")
    return [
        (pa.list_(inner), st.lists(some, max_size=3)),
        (pa.map_(pa.string(), inner), st.dictionaries(named, some).map(lambda one: list(one.items()))),
        (pair, pairs),
        (pa.list_(pair), st.lists(st.none() | pairs, max_size=2)),
        (pa.map_(pa.string(), pair), st.dictionaries(named, pairs, max_size=2).map(lambda one: list(one.items()))),
        (
            pa.struct([("of", pair), ("many", pa.list_(pa.list_(inner)))]),
            st.fixed_dictionaries({"of": st.none() | pairs, "many": st.lists(st.lists(some, max_size=2), max_size=2)}),
        ),
    ]


KINDS: list[Kind] = PLAIN + [each for kind in (PLAIN[1], PLAIN[2], PLAIN[8], PLAIN[14]) for each in _nested(kind)]


@dataclass(frozen=True)
class Column:
    name: str
    kind: int
    required: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, KINDS[self.kind][0], nullable=not self.required)

    @property
    def values(self) -> st.SearchStrategy[Any]:
        values = KINDS[self.kind][1]
        return values if self.required else st.none() | values


@dataclass(frozen=True)
class Table:
    """What a topic and its table are made of. Without columns it is a message topic."""

    columns: tuple[Column, ...]
    partitions: int
    partitioning: tuple[str, ...] | None

    @property
    def schema(self) -> pa.Schema | None:
        return pa.schema([column.field for column in self.columns]) if self.columns else None


def _ways(column: Column) -> list[str]:
    """How a table may be partitioned by a column."""
    kind, name = column.field.type, column.name
    if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return [] if pa.types.is_nested(kind) else [name]
    ways = [name, f"bucket[4]({name})"]
    if pa.types.is_temporal(kind):
        return [*ways, f"day({name})", f"year({name})"]
    return ways if kind == pa.binary(3) else [*ways, f"truncate[2]({name})"]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    partitions = draw(st.sampled_from([1, 1, 2]))
    if draw(st.integers(0, 5)) == 0:
        partitioning = draw(st.sampled_from([None, (), ("bucket[4](_key)",)]))
        return Table((), partitions, partitioning)
    one = st.builds(
        Column, st.sampled_from(NAMES), st.integers(0, len(KINDS) - 1), st.sampled_from([False, False, True])
    )
    columns = draw(st.lists(one, min_size=1, max_size=4, unique_by=lambda column: column.name))
    ways = [(), ("_topic_partition", "hour(_append_time)"), *((way,) for column in columns for way in _ways(column))]
    return Table(tuple(columns), partitions, draw(st.none() | st.sampled_from(ways)))


WIDER = {pa.int8(): pa.int32(), pa.float32(): pa.float64(), pa.decimal128(9, 2): pa.decimal128(18, 2)}


def widened(schema: pa.Schema, number: int) -> pa.Schema:
    """As a topic may change: a new column, wider types, and nulls where there were none."""
    fields = [pa.field(field.name, WIDER.get(field.type, field.type), nullable=True) for field in schema]
    return pa.schema([*fields, pa.field(f"new {number}", pa.list_(pa.struct([("x y", pa.int64())])))])
