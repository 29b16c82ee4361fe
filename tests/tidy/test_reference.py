"""The reference says what the code says: settings, errors and public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from documents import DOCS, table_rows
from pydantic import BaseModel

import frazil
import frazil.aio
import frazil.iceberg
import frazil.spark
import frazil.testing
from frazil.cli.main import app, exit_code
from frazil.core import errors
from frazil.core.rows import ENVELOPE
from frazil.core.settings import Settings
from frazil.core.settings.security import JwtSettings
from frazil.core.settings.topics import TopicSettings
from frazil.doors.http.door import make_app
from frazil.node.node import Node
from frazil.pipeline.source.columns import source_columns
from frazil.pipeline.source.options import NAMES as OPTIONS

REFERENCE = DOCS / "reference"


def test_the_settings_table_equals_the_settings() -> None:
    documented = list(table_rows(REFERENCE / "settings.md", "## All of them"))
    _same_settings(documented, list(_setting_rows(Settings, "")))


def test_the_table_of_a_single_topics_settings_equals_the_settings() -> None:
    documented = list(table_rows(REFERENCE / "settings.md", "## Of a single topic"))
    _same_settings(documented, list(_setting_rows(TopicSettings, "topics.*.")))


def test_the_table_of_an_issuers_settings_equals_the_settings() -> None:
    documented = list(table_rows(REFERENCE / "settings.md", "## Of an issuer of tokens"))
    expected = list(_setting_rows(JwtSettings, ""))
    assert [(row[0], row[2]) for row in documented] == [(row[0], row[2]) for row in expected]
    for row, field in zip(documented, JwtSettings.model_fields.values(), strict=True):
        assert row[1] == ("needed" if field.is_required() else _shown(field.default))


def test_the_guide_to_spark_has_the_options_and_the_columns_of_the_source() -> None:
    guide = DOCS / "guides" / "spark.md"
    options = [name for row in table_rows(guide, "## Options") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(options) == sorted(OPTIONS)
    columns = [row[0].strip("`") for row in table_rows(guide, "## Columns")]
    assert columns == source_columns(ENVELOPE).names


def _same_settings(documented: list[list[str]], expected: list[list[str]]) -> None:
    assert [row[:2] for row in documented] == [row[:2] for row in expected]
    for documented_row, expected_row in zip(documented, expected, strict=True):
        if expected_row[2]:
            assert documented_row[2] == expected_row[2]
        else:
            assert documented_row[2], f"{documented_row[0]} has no meaning"


def _setting_rows(model: type[BaseModel], prefix: str) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _setting_rows(field.annotation, f"{prefix}{name}.")
        else:
            yield [f"`{prefix}{name}`", _shown(field.default), field.description or ""]


def _shown(value: Any) -> str:
    """A default as a person writes it: bytes in binary units, none as such."""
    if value is None:
        return "none"
    if isinstance(value, int) and value >= 1024 and value % 1024 == 0:
        return f"{value // 2**20} MiB" if value % 2**20 == 0 else f"{value // 1024} KiB"
    return f"`{value}`"


def test_the_errors_table_equals_the_errors() -> None:
    documented = {cells[0].strip("`"): cells[1].strip("`") for cells in table_rows(REFERENCE / "errors.md", "# Errors")}
    assert documented == {cls.__name__: cls.code for cls in _error_classes()}


def test_every_error_says_what_to_do() -> None:
    for cells in table_rows(REFERENCE / "errors.md", "# Errors"):
        assert len(cells) == 3
        assert cells[2], cells[0]


def test_the_tree_at_the_top_of_the_errors_module_equals_the_classes() -> None:
    drawn: list[tuple[str, str]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)(?:\s{2,}\S.*)?$", line)
        if match:
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            if depth:
                drawn.append((path[depth - 1], path[depth]))
    actual = [(cls.__bases__[0].__name__, cls.__name__) for cls in _error_classes() if cls is not errors.FrazilError]
    assert sorted(drawn) == sorted(actual)


def _error_classes() -> list[type[errors.FrazilError]]:
    return [
        member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.FrazilError) and member.__module__.startswith("frazil.core.")
    ]


def test_every_error_is_public() -> None:
    assert {cls.__name__ for cls in _error_classes()} <= set(frazil.__all__)


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in _error_classes()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    "module",
    [frazil, frazil.aio, frazil.iceberg, frazil.spark, frazil.testing],
    ids=lambda module: module.__name__,
)
def test_the_public_names_are_sorted_and_there(module: Any) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.parametrize(
    "module",
    [frazil, frazil.aio, frazil.iceberg, frazil.spark, frazil.testing],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module: Any) -> None:
    words = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    missing = [name for name in module.__all__ if not re.search(rf"`(?:\w+\.)*{name}\b", words)]
    assert not missing


@pytest.mark.parametrize(
    "owner", [frazil.Storage, frazil.Topic, frazil.aio.Storage, frazil.aio.Topic, frazil.iceberg.IcebergStorage]
)
def test_every_public_method_is_in_the_reference(owner: type) -> None:
    words = (REFERENCE / "python.md").read_text(encoding="utf-8")
    own = [name for name in dir(owner) if not name.startswith("_")]
    missing = [name for name in own if not re.search(rf"`{name}\b", words)]
    assert not missing


def test_every_field_of_the_statistics_is_in_the_reference() -> None:
    documented = [cells[0].strip("`") for cells in table_rows(REFERENCE / "python.md", "## TopicStats")]
    assert documented == list(frazil.TopicStats.__dataclass_fields__)


def test_every_field_of_a_message_is_in_the_reference() -> None:
    documented = [cells[0].strip("`") for cells in table_rows(REFERENCE / "python.md", "## Message")]
    assert documented == list(frazil.Message._fields)


def test_the_verbs_table_equals_the_command_line() -> None:
    documented = [cells[0].strip("`") for cells in table_rows(REFERENCE / "cli.md", "## Verbs")]
    words = [" ".join(word for word in verb.split(" ") if word.islower()) for verb in documented]
    assert sorted(words) == sorted(_verbs(typer.main.get_command(app), "frazil"))


def _verbs(command: Any, path: str) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield path
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from _verbs(command.get_command(context, name), f"{path} {name}")


def test_the_exit_codes_of_the_reference_are_those_of_the_errors() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    made = {exit_code(cls.__new__(cls)) for cls in _error_classes()}
    assert documented == made | {0, 130}


def test_the_tables_of_paths_equal_the_door() -> None:
    with frazil.open(None) as storage:
        app = make_app(Node(storage))
        paths = app.openapi()["paths"]
    documented = [cells[0].strip("`") for cells in table_rows(REFERENCE / "http.md", "## Paths")]
    assert sorted(documented) == sorted([app.openapi_url, *(path for path in paths if not path.startswith("/v1/"))])
    routes = [cells[0].strip("`") for cells in table_rows(REFERENCE / "http.md", "## Admin")]
    made = [f"{method.upper()} {path}" for path in paths if path.startswith("/v1/") for method in paths[path]]
    assert sorted(routes) == sorted(made)


def test_every_admin_operation_says_what_it_does_and_how_it_fails() -> None:
    with frazil.open(None) as storage:
        paths = make_app(Node(storage)).openapi()["paths"]
    operations = [one for path in paths if path.startswith("/v1/") for one in paths[path].values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for one in operations:
        assert one["tags"], one
        assert one["description"], one
        assert {"400", "500"} <= set(one["responses"]), one
        assert "422" not in one["responses"], one
