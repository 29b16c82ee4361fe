"""Any Avro schema, another that differs from it a little, and any value of it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
FIELD_NAMES = "abc"
SYMBOLS = ("RED", "GREEN", "BLUE")

Shape = Any
"""A primitive's name, or a tuple of a kind and its parts: a schema before its types have names."""


def _unions(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    branch = inner.filter(lambda shape: shape != "self" and shape[0] != "union")
    key = lambda shape: shape if isinstance(shape, str) else shape[0]  # noqa: E731
    return st.lists(branch, min_size=1, max_size=3, unique_by=key).map(lambda branches: ("union", tuple(branches)))


def _records(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    fields = st.dictionaries(st.sampled_from(FIELD_NAMES), st.tuples(inner, st.booleans()), max_size=3)
    return fields.map(lambda each: ("record", tuple(sorted(each.items()))))


LEAVES: st.SearchStrategy[Shape] = st.one_of(
    st.sampled_from(PRIMITIVES),
    st.just("self"),
    st.tuples(st.just("enum"), st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True).map(tuple), st.booleans()),
    st.tuples(st.just("fixed"), st.integers(1, 2)),
)
PARTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        _records(inner), _unions(inner), st.tuples(st.sampled_from(("array", "map")), inner), _records(inner)
    ),
    max_leaves=8,
)

SHAPES = st.one_of(_records(PARTS).filter(lambda shape: len(shape[1]) > 1), PARTS)


@st.composite
def changed(draw: st.DrawFn, shape: Shape) -> Shape:
    """Mostly the same, so that what reads what is decided deep within."""
    if draw(st.integers(0, 9)) == 0:
        return draw(SHAPES)
    if isinstance(shape, str):
        return draw(st.sampled_from(PRIMITIVES)) if draw(st.integers(0, 3)) == 0 else shape
    kind = shape[0]
    if kind == "record":
        kept = [(name, (draw(changed(inner)), draw(st.booleans()))) for name, (inner, _) in shape[1]]
        if draw(st.booleans()):
            kept = [each for each in kept if draw(st.integers(0, 3))]
        free = [name for name in FIELD_NAMES if name not in dict(kept)]
        if free and draw(st.integers(0, 2)) == 0:
            kept.append((draw(st.sampled_from(free)), (draw(LEAVES), draw(st.booleans()))))
        return ("record", tuple(kept))
    if kind in ("array", "map"):
        return (kind, draw(changed(shape[1])))
    if kind == "union":
        more = draw(st.sampled_from(PRIMITIVES))
        known = {each if isinstance(each, str) else each[0] for each in shape[1]}
        return ("union", (*shape[1], more)) if more not in known else shape
    if kind == "enum":
        return (
            "enum",
            draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True).map(tuple)),
            draw(st.booleans()),
        )
    return ("fixed", draw(st.integers(1, 2)))


def schema(shape: Shape, path: str = "", within: str | None = None) -> Any:
    """With names by their place, so that types at the same place of two schemas have the same name."""
    if shape == "self":
        return "null" if within is None else ["null", within]
    if isinstance(shape, str):
        return shape
    kind, parts = shape[0], shape[1]
    if kind == "union":
        return [schema(branch, f"{path}_u", within) for branch in parts]
    if kind == "array":
        return {"type": "array", "items": schema(parts, f"{path}_i", within)}
    if kind == "map":
        return {"type": "map", "values": schema(parts, f"{path}_v", within)}
    if kind == "enum":
        return {"type": "enum", "name": f"E{path}", "symbols": list(parts)} | (
            {"default": parts[0]} if shape[2] else {}
        )
    if kind == "fixed":
        return {"type": "fixed", "name": f"F{path}", "size": parts}
    name = f"R{path}"
    fields = []
    for field, (inner, has_default) in parts:
        made = {"name": field, "type": schema(inner, f"{path}_{field}", name)}
        default = _first(inner)
        fields.append(made | {"default": default} if has_default else made)
    return {"type": "record", "name": name, "fields": fields}


def _first(shape: Shape) -> Any:
    """A value as the JSON of a default."""
    if isinstance(shape, str):
        plain = {"boolean": False, "int": 0, "long": 0, "float": 0.5, "double": 0.5, "bytes": "", "string": ""}
        return plain.get(shape)
    kind, parts = shape[0], shape[1]
    if kind == "union":
        return _first(parts[0])
    if kind == "record":
        return {field: _first(inner) for field, (inner, _) in parts}
    if kind == "enum":
        return parts[0]
    return "x" * parts if kind == "fixed" else [] if kind == "array" else {}


def values(made: Any, named: dict[str, Any] | None = None, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value of a schema; recursive types end after a few rounds."""
    named = {} if named is None else named
    if isinstance(made, list):
        branches = [each for each in made if depth < 3 or isinstance(each, dict) or each not in named]
        return st.one_of([values(each, named, depth + 1) for each in branches])
    if isinstance(made, str):
        return values(named[made], named, depth + 1) if made in named else _PRIMITIVE_VALUES[made]
    kind = made["type"]
    if kind == "array":
        return st.lists(values(made["items"], named, depth + 1), max_size=0 if depth > 3 else 2)
    if kind == "map":
        return st.dictionaries(
            st.text(max_size=2), values(made["values"], named, depth + 1), max_size=0 if depth > 3 else 2
        )
    if kind == "enum":
        return st.sampled_from(made["symbols"])
    if kind == "fixed":
        return st.binary(min_size=made["size"], max_size=made["size"])
    named = named | {made["name"]: made}
    return st.fixed_dictionaries({field["name"]: values(field["type"], named, depth) for field in made["fields"]})


_PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=3),
    "string": st.text(max_size=3),
}
