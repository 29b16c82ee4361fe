"""What a process imports before it does anything: as little as it needs, or people wait for nothing."""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
import typer.main

import frazil
from frazil.cli.main import app
from frazil.cli.verbs import VERBS

DEADLINE_SECONDS = 60
HEAVY = {
    *("duckdb", "fastapi", "frazil.log.storage", "google.protobuf", "grpc", "numpy", "pandas", "prometheus_client"),
    *("pyarrow", "pyiceberg", "pyspark", "rich.console", "rich.progress", "sqlalchemy", "sqlite3", "uvicorn"),
}
"""Each takes as long as all that a light verb does, or longer."""
WATCHED = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr)); "


def imported(code: str, *arguments: str, **environment: str) -> set[str]:
    """The modules that a new process had when it ended."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED + code, *arguments],
        env={**kept, **environment}, capture_output=True, text=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


RUN = "from frazil.cli.main import run; run()"


def test_the_package_imports_nothing_heavy_until_it_is_used() -> None:
    found = imported("import frazil")
    assert not found & (HEAVY | {"pydantic", "typer", "yaml", "asyncio"})
    assert "pyarrow" in imported("import frazil; frazil.Message")


def test_no_module_of_verbs_imports_anything_heavy() -> None:
    found = imported(f"import importlib; [importlib.import_module(m) for m in {sorted(modules())}]")
    assert not found & (HEAVY | {"yaml", "frazil.core.settings"})


def modules() -> set[str]:
    return {place.split(":")[0] for place in VERBS.values()}


@pytest.mark.parametrize("line", ["frazil subs", "frazil topics describe /shop/", "frazil produce /", "frazil log re"])
def test_completing_a_word_imports_nothing_heavy(line: str, tmp_path: Path) -> None:
    (tmp_path / "log" / "shop" / "orders").mkdir(parents=True)
    (tmp_path / "log" / "shop" / "orders" / "topic.json").touch()
    asked = {"_FRAZIL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    assert not imported(RUN, **asked, FRAZIL_DATA=str(tmp_path)) & (HEAVY | {"yaml", "urllib.request"})


def test_a_verb_imports_its_own_module_alone() -> None:
    found = imported(RUN, "version")
    assert not found & HEAVY
    assert found & (modules() | {"frazil.cli.version"}) == {"frazil.cli.version"}


def test_a_server_imports_no_lake_and_no_broker_before_it_knows_that_they_are_wanted() -> None:
    found = imported("import frazil.serve.process")
    assert not found & {"danube", "duckdb", "pandas", "pyiceberg", "pyspark", "sqlalchemy"}


@pytest.fixture
def server() -> Iterator[str]:
    """Answers every question with an empty list."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"items": [], "next": null}')

        def log_message(self, *_: object) -> None:
            """Not into the output of tests."""

    with HTTPServer(("127.0.0.1", 0), Empty) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{stub.server_port}"
        stub.shutdown()


@pytest.mark.parametrize("verb", ["topics", "subscriptions", "producers", "consumers", "schemas", "keys", "bindings"])
def test_a_verb_that_asks_a_server_imports_nothing_heavy(verb: str, server: str) -> None:
    assert not imported(RUN, verb, "list", "--server", server) & HEAVY


def test_the_help_shows_every_verb_with_its_own_line() -> None:
    group = typer.main.get_group(app)
    context = typer.Context(group)
    assert group.list_commands(context) == list(VERBS)
    for name in VERBS:
        verb = group.get_command(context, name)
        assert verb is not None
        assert verb.name == name
        assert verb.get_short_help_str()


def test_every_name_that_comes_later_is_told_to_type_checkers() -> None:
    source = Path(frazil.__file__).read_text(encoding="utf-8")
    told = {
        (one.asname or one.name): f"{block.module}:{one.name}"
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
        for block in node.body
        if isinstance(block, ast.ImportFrom)
        for one in block.names
    }
    assert {**told, "aio": "frazil.aio"} == frazil._LATER
    assert set(frazil._LATER) - {"aio"} <= set(frazil.__all__)


def test_later_names_are_like_others() -> None:
    assert {*frazil.__all__, "aio", "__version__"} <= set(dir(frazil))
    everything: dict[str, object] = {}
    exec("from frazil import *", everything)
    assert everything["open"] is frazil.open
    assert pickle.loads(pickle.dumps(frazil.Message)) is frazil.Message
    assert not hasattr(frazil, "no_such_name")
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from frazil import no_such_name")
    imported("import frazil; assert frazil.aio.open is not frazil.open")
