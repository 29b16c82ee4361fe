"""Shell completion, by the protocol that shells speak and in a real bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import frazil
from frazil.cli.main import main
from parts.danube import Server, serving

DEADLINE_SECONDS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion") / "data"
    with frazil.open(folder) as storage:
        for name in ("/shop/orders", "/shop/others", "/lab/readings"):
            storage.topic(name)
    return folder


class Shell:
    def __init__(self, captured: pytest.CaptureFixture[str], patched: pytest.MonkeyPatch) -> None:
        self._captured = captured
        self._patched = patched

    def completes(self, line: str, **environment: str) -> list[str]:
        """What bash would offer for the last word of a line."""
        words = shlex.split(line) + ([""] if line.endswith(" ") else [])
        asked = {"_FRAZIL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        with self._patched.context() as patch:
            for name in ("FRAZIL_DATA", "FRAZIL_CONFIG", "FRAZIL_SERVER"):
                patch.delenv(name, raising=False)
            for name, value in {**asked, **environment}.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([])
        out, error = self._captured.readouterr()
        assert (ended.value.code, error) == (0, "")
        return out.split()


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


def clean(**environment: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}
    return {**kept, "PYTHONWARNINGS": "error", **environment}


def test_verbs_options_and_topics_of_a_folder_are_completed(shell: Shell, data: Path) -> None:
    assert shell.completes("frazil subs") == ["subscriptions"]
    assert "--server" in shell.completes("frazil topics list --s")
    assert shell.completes("frazil serve --otlp-") == ["--otlp-host", "--otlp-grpc-port", "--otlp-http-port"]
    assert shell.completes("frazil topics describe /shop/", FRAZIL_DATA=str(data)) == ["/shop/orders", "/shop/others"]
    assert shell.completes(f"frazil consume --data {data} /lab") == ["/lab/readings"]


def test_where_names_cannot_be_had_there_are_none(shell: Shell, tmp_path: Path) -> None:
    assert shell.completes("frazil topics describe /", FRAZIL_SERVER="http://127.0.0.1:1") == []
    assert shell.completes("frazil topics describe /", FRAZIL_DATA=str(tmp_path / "nothing")) == []
    assert shell.completes("frazil subscriptions describe /a/b ", FRAZIL_DATA=str(tmp_path / "nothing")) == []


def test_names_of_a_server_are_completed(shell: Shell, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        fill(server)
        by_name = {"FRAZIL_SERVER": server.http}
        assert shell.completes("frazil topics describe /cl", **by_name) == ["/clients/orders"]
        assert shell.completes("frazil subscriptions reset /clients/orders b", **by_name) == ["billing"]
        folder = f"--data {tmp_path / 'data'}"
        assert shell.completes(f"frazil subscriptions reset {folder} /clients/orders ") == ["billing", "shipping"]


def fill(server: Server) -> None:
    with frazil.connect(server.flight) as storage:
        for name in ("billing", "shipping"):
            storage.topic("/clients/orders").subscribe(name).close()


def test_a_real_bash_completes_with_the_script_that_is_shown(data: Path, tmp_path: Path) -> None:
    program = tmp_path / "frazil"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m frazil "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(frazil --show-completion bash)"
    COMP_WORDS=(frazil topics describe /shop/or) COMP_CWORD=3
    _frazil_completion frazil
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env=clean(PATH=f"{tmp_path}:{os.environ['PATH']}", FRAZIL_DATA=str(data)),
        capture_output=True, text=True, timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("/shop/orders\n", "")
