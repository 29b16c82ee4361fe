"""The names in a query, extracted from its syntax alone.

DuckDB's parser returns the tree; nothing is bound, so that no file is opened and no function is called. The parsing
connection is confined before it gets the text.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from frazil.core.errors import InvalidInput
from frazil.lake.tables.schema import TableName

DEFAULT_NAMESPACE = "default"
PARSER_MEMORY_MIB_MAX = 256

_QUERY_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
"""Nodes that only read. DuckDB also accepts INSERT, DELETE and COPY within a WITH."""

CONFINED_FUNCTIONS = {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
"""Table functions that a confined query may call: those that produce rows from their arguments alone."""

_FUNCTIONS_OF_THE_HOST = {
    *("current_setting", "getenv", "getvariable", "json_serialize_plan"),
    *("pg_get_viewdef", "pg_get_constraintdef"),
}
"""Scalar functions that reveal more than their arguments: the settings include folders of the host. A plan is made of
a text that nothing here has checked, with the values of its settings. The two of PostgreSQL are macros that read
DuckDB's catalog, where a topic is a view of files."""

_OWN_VIEWS = "SELECT lower(view_name) FROM duckdb_views() WHERE internal AND schema_name IN ('main', 'pg_catalog')"
"""Views that need no schema. A WITH of the same name hides one only in its own scope."""

_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """`tables` must be topics or tables; `perhaps` are names that a WITH of the query also defines. Those `in_three`
    parts, as `acme.default.traces`, are among the tables: their namespace has a dot."""

    tables: frozenset[TableName]
    perhaps: frozenset[TableName]
    in_three: frozenset[TableName] = frozenset()


@functools.cache
def _parser() -> duckdb.DuckDBPyConnection:
    """An empty database that reads no file, with a locked configuration. One per process: it keeps no state."""
    return duckdb.connect(
        config={
            **PLAIN_CONFIG,
            "memory_limit": f"{PARSER_MEMORY_MIB_MAX}MiB",
            "temp_directory": "",
            "threads": "1",
            "enable_external_access": "false",
            "lock_configuration": "true",
        }
    )


PLAIN_CONFIG = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # no variable of this process is a table
    "allow_persistent_secrets": "false",
}
"""For every connection: no extension is loaded, and nothing of the process or the user's home is visible."""


def parse(query: str, *, confined: bool) -> Parsed:
    """Return the tables that one SELECT, or its EXPLAIN, names. Raises `InvalidInput` for any other statement."""
    with _parser().cursor() as parser:
        return _parsed(parser, query, confined=confined)


def _parsed(parser: duckdb.DuckDBPyConnection, query: str, *, confined: bool) -> Parsed:
    tree = _tree(parser, _select_of(parser, query))
    defined: set[str] = set()
    named: set[tuple[str, ...]] = set()
    for node in _nodes(tree):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _QUERY_NODES:
            raise _one_select()
        if kind == "BASE_TABLE":
            path = (node["catalog_name"], node["schema_name"], node["table_name"])
            named.add(tuple(part for part in path if part))
        elif kind == "TABLE_FUNCTION" and confined:
            _check_function(node)
        elif kind == "FUNCTION" and confined:
            _check_scalar(node)
        elif kind == "SHOW_REF" and confined:
            _check_show(node)
        defined.update(str(one["key"]).lower() for one in _defined_by(node))
    tables = {_table(path) for path in named}
    perhaps = {table for path, table in ((path, _table(path)) for path in named) if _is_defined(path, defined)}
    if confined:
        _check_names(parser, perhaps)
    in_three = frozenset(_table(path) for path in named if len(path) == 3)
    return Parsed(frozenset(tables - perhaps), frozenset(perhaps), in_three)


def _select_of(parser: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the text of the SELECT. The statement of an EXPLAIN is parsed again: it may be any statement."""
    kinds = [statement.type for statement in parser.extract_statements(query)]
    explain = _EXPLAIN.match(query)
    if kinds == [duckdb.StatementType.EXPLAIN] and explain is not None:
        query = query[explain.end() :]
        kinds = [statement.type for statement in parser.extract_statements(query)]
    if kinds != [duckdb.StatementType.SELECT]:
        raise _one_select()
    return query


def _one_select() -> InvalidInput:
    return InvalidInput("sql: give one SELECT, or EXPLAIN of one; topics are changed by publishing to them")


def _tree(parser: duckdb.DuckDBPyConnection, select: str) -> dict[str, Any]:
    ((text,),) = parser.execute("SELECT json_serialize_sql(?)", [select]).fetchall()
    try:
        tree: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise InvalidInput("sql: the query is nested too deeply") from None
    if tree["error"]:
        raise InvalidInput(f"sql: {tree['error_message']}")
    return tree


def _nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting: list[Any] = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _defined_by(node: dict[str, Any]) -> list[dict[str, Any]]:
    found = node.get("cte_map")
    return list(found["map"]) if isinstance(found, dict) else []


def _check_function(node: dict[str, Any]) -> None:
    name = str(node["function"].get("function_name", "")).lower()
    if name not in CONFINED_FUNCTIONS:
        allowed = ", ".join(sorted(CONFINED_FUNCTIONS))
        raise InvalidInput(f"sql: the table function {name} is not allowed through a server; allowed are {allowed}")


def _check_scalar(node: dict[str, Any]) -> None:
    name = str(node.get("function_name", "")).lower()
    if name in _FUNCTIONS_OF_THE_HOST:
        raise InvalidInput(f"sql: the function {name} is not allowed through a server")


def _check_show(node: dict[str, Any]) -> None:
    """Allow only what describes a query. A SHOW of a bare name may be one of a setting, whatever its name."""
    if node.get("query") is None:
        raise InvalidInput("sql: SHOW is not allowed through a server; use DESCRIBE namespace.topic for its columns")


def _check_names(parser: duckdb.DuckDBPyConnection, perhaps: set[TableName]) -> None:
    own = {row[0] for row in parser.execute(_OWN_VIEWS).fetchall()} if perhaps else set()
    for table in sorted(perhaps):
        if table.table.lower() in own:
            raise InvalidInput(f"sql: {table.table} is a view of DuckDB's own; give what WITH defines another name")


def _table(path: tuple[str, ...]) -> TableName:
    return TableName(".".join(path[:-1]) or DEFAULT_NAMESPACE, path[-1])


def _is_defined(path: tuple[str, ...], defined: set[str]) -> bool:
    return len(path) == 1 and path[0].lower() in defined
