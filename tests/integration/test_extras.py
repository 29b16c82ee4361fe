"""The wheel in an empty environment, with each extra alone: what it does, and what it says is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from frazil.cli.generate import ALERTS, DASHBOARD

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("extras")]


def _run(*command: str | Path, **named: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment | named, cwd=ROOT
    )
    assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_has_the_files_that_generate_prints(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as made:
        assert {f"frazil/doors/metrics/{name}" for name in (DASHBOARD, ALERTS)} <= set(made.namelist())


class Environment:
    """One that has the wheel with an extra, at the locked versions, and nothing else."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        self._python = folder / "env" / "bin" / "python"
        uv = ("sh", ROOT / "scripts" / "setup.sh", "uv")
        _run(*uv, "venv", "--quiet", "--python", sys.executable, folder / "env")
        wanted = f"frazil[{extra}] @ {wheel.as_uri()}" if extra else f"frazil @ {wheel.as_uri()}"
        _run(
            *uv, "pip", "install", "--quiet", "--python", self._python,
            "--constraint", ROOT / "requirements.lock", wanted,
        )  # fmt: skip

    def python(self, code: str) -> str:
        return _run(self._python, "-c", textwrap.dedent(code), FRAZIL_DATA=str(self.folder / "data"))

    def refused(self, *words: str) -> str:
        """The error of a verb that can't be done here, as JSON has it."""
        command = [str(self._python), "-m", "frazil", *words, "--data", str(self.folder / "data"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
        message: str = json.loads(done.stderr.splitlines()[-1])["message"]
        return message


@pytest.fixture
def environment(request: pytest.FixtureRequest, tmp_path: Path, wheel: Path) -> Environment:
    return Environment(tmp_path, wheel, request.param)


def extra(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("environment", [name], indirect=True, ids=[name or "none"])


PUBLISH = """
    import frazil
    with frazil.open("{data}") as storage:
        topic = storage.topic("/shop/orders")
        topic.publish_many(["tea", "milk"])
        assert [message.payload for message in topic.read("earliest")] == [b"tea", b"milk"]
"""


@extra("")
def test_alone_it_is_a_client_and_an_embedded_log(environment: Environment) -> None:
    environment.python(PUBLISH.format(data=environment.folder / "data"))
    environment.python("""
        import frazil
        try:
            frazil.connect("grpc://127.0.0.1:9")
        except frazil.OwnerUnreachable:
            raise SystemExit(0)
        raise SystemExit("nobody listens there")
    """)
    assert environment.refused("serve").endswith("is not installed: pip install 'frazil[server]'")
    assert environment.refused("sql", "select 1").endswith("pip install 'frazil[sql]'")
    assert "pip install 'frazil[lake]'" in environment.refused("verify")
    assert "pip install 'frazil[" in environment.refused("pipeline", "run", "--once")


@extra("server")
def test_the_server(environment: Environment) -> None:
    environment.python("""
        import json, subprocess, sys, frazil
        command = [sys.executable, "-m", "frazil", "serve", "--json", "--port", "0", "--flight-port", "0"]
        command += ["--broker-port", "0", "--admin-port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            told = json.loads(server.stdout.readline())
            with frazil.connect(told["flight"]) as storage:
                assert storage.topic("/shop/orders").publish("tea") == 0
        finally:
            server.terminate()
            assert server.wait(30) == 0
    """)
    environment.python("""
        import frazil
        from frazil.registry.protobuf.schema import ProtobufSchema
        try:
            ProtobufSchema('syntax = "proto3"; message A { int32 a = 1; }')
        except frazil.NotInstalled as error:
            assert "pip install 'frazil[protobuf]'" in str(error), error
        else:
            raise AssertionError
    """)


@pytest.mark.long
@extra("sql")
def test_sql(environment: Environment) -> None:
    environment.python(PUBLISH.format(data=environment.folder / "data"))
    found = environment.python(f"""
        from frazil.cli.main import main
        query = "select count(*) as n from shop.orders"
        raise SystemExit(main(["sql", query, "--json", "--data", {str(environment.folder / "data")!r}]))
    """)
    assert json.loads(found) == {"n": 2}


@pytest.mark.long
@extra("lake")
def test_the_lake(environment: Environment) -> None:
    environment.python(PUBLISH.format(data=environment.folder / "data"))
    environment.python(f"""
        from frazil.cli.main import main
        raise SystemExit(main(["verify", "--data", {str(environment.folder / "data")!r}]))
    """)
    for catalog, wanted in (("glue", "glue"), ("sql", "postgres")):
        uri = ", uri: 'postgresql+psycopg2://a@127.0.0.1:9/b'" if catalog == "sql" else ""
        config = environment.folder / f"{catalog}.yaml"
        config.write_text(f"catalog: {{type: {catalog}{uri}}}\n", encoding="utf-8")
        said = environment.refused("table", "list", "--config", str(config))
        assert said.endswith(f"pip install 'frazil[{wanted}]'"), said


@pytest.mark.long
@extra("glue")
def test_glue(environment: Environment) -> None:
    environment.python("import boto3, pyiceberg.catalog.glue, frazil.lake.catalogs.opening")


@pytest.mark.long
@extra("postgres")
def test_postgres(environment: Environment) -> None:
    environment.python("import psycopg2, pyiceberg.catalog.sql, frazil.lake.catalogs.opening")


@pytest.mark.long
@extra("protobuf")
def test_protobuf(environment: Environment) -> None:
    environment.python("""
        from frazil.registry.protobuf.schema import ProtobufSchema
        assert ProtobufSchema('syntax = "proto3"; message A { int32 a = 1; }').root.full_name == "A"
    """)


@pytest.mark.long
@extra("traces")
def test_traces(environment: Environment) -> None:
    environment.python("import frazil.node.publish.traces")


@pytest.mark.long
@extra("spark")
def test_spark_moves_rows_and_reads_them(environment: Environment) -> None:
    data = str(environment.folder / "data")
    environment.python(PUBLISH.format(data=data))
    environment.python(f"""
        from frazil.cli.main import main
        assert main(["pipeline", "run", "--once", "--data", {data!r}]) == 0
        raise SystemExit(main(["verify", "--data", {data!r}]))
    """)
