"""Child processes: they end with us, are told through stdin, and are bounded in output and in time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from frazil.core.process import child as child_process
from frazil.core.process.child import Child, run_bounded

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_what_a_child_is_told_is_not_on_its_command_line() -> None:
    with Child(python("import sys; line = sys.stdin.readline(); print(line.strip(), sys.argv)")) as child:
        child.tell(b"secret")
        assert child.answer() == b"secret ['-c']\n"


def test_telling_a_child_that_has_ended_is_no_error() -> None:
    with Child(python("raise SystemExit(3)")) as child:
        assert child.wait() == 3
        child.tell(b"x" * 1_000_000)


def test_a_child_leads_a_session_of_its_own() -> None:
    with Child(python("import os; print(os.getsid(0) == os.getpid())")) as child:
        assert child.answer() == b"True\n"


def test_a_child_that_says_too_much_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "ANSWER_BYTES_MAX", 1_000)
    with Child(python("while True: print('x' * 100)")) as child:
        assert len(child.answer()) == 1_001
        assert child.wait() == -signal.SIGKILL


def test_only_the_end_of_stderr_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "OUTPUT_BYTES_MAX", 20)
    with Child(python("import sys; sys.stderr.write('early\\n' * 1000 + 'the last line\\n')")) as child:
        child.wait()
        assert child.last_errors() == ["early", "the last line"]


def test_stopping_kills_what_ignores_sigterm_and_what_it_has_started() -> None:
    inner = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(99)"
    )
    program = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"started = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE); "
        "started.stdout.readline(); print(started.pid, flush=True); started.wait()"
    )
    child = Child(python(program))
    grandchild = psutil.Process(int(child.stdout.readline()))
    assert not child.stop(0.1)
    assert not child.is_running
    grandchild.wait(10)


def test_a_child_that_ends_when_asked_is_not_killed() -> None:
    child = Child(python(WAITS))
    assert child.stdout.readline() == b"ready\n"
    assert child.stop(30)


def test_waiting_has_a_limit() -> None:
    child = Child(python(WAITS))
    with pytest.raises(TimeoutError):
        child.wait(0.01)
    child.kill()
    child.close()


def test_a_run_returns_code_and_output(tmp_path: Path) -> None:
    done = run_bounded(
        python("import os, sys; print(os.getcwd()); sys.stderr.write('bad'); sys.exit(4)"),
        seconds_max=60,
        cwd=str(tmp_path),
    )
    assert done == (4, f"{tmp_path}\n", "bad")


def test_a_run_has_no_stdin_and_bounded_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "OUTPUT_BYTES_MAX", 10)
    done = run_bounded(python("import sys; print('x' * 1000, sys.stdin.read())"), seconds_max=60)
    assert done == (0, "x" * 10, "")


def test_a_run_that_takes_too_long_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"{sys.executable} -c 'import time; time.sleep(99)' & echo $! > {note}; wait"
    with pytest.raises(TimeoutError, match="did not end in 1 s"):
        run_bounded(["/bin/sh", "-c", script], seconds_max=1)
    pid = int(note.read_text())
    gone = threading.Event()
    for _ in range(1_000):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            gone.set()
            break
        gone.wait(0.01)
    assert gone.is_set()


def test_a_program_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_bounded([str(tmp_path / "none")], seconds_max=1)


@pytest.mark.parametrize("ignored", [True, False])
def test_a_child_answers_sigint_though_its_parent_ignores_it(ignored: bool) -> None:
    program = (
        "import signal; from frazil.cli.target.with_parent import end_with_stdin; end_with_stdin(); "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    how = signal.SIG_IGN if ignored else signal.SIG_DFL
    before = signal.signal(signal.SIGINT, how)
    try:
        child = Child(python(program))
    finally:
        signal.signal(signal.SIGINT, before)
    with child:
        assert child.answer() == b"True\n"


def test_a_line_that_was_told_comes_whole_however_it_is_cut() -> None:
    program = "from frazil.cli.target.with_parent import read_stdin; print(len(read_stdin()))"
    with Child(python(program)) as child:
        child.tell(b'"' + b"\\n" * 200_000 + b'"')
        assert child.answer() == b"200000\n"


def test_stdin_that_ends_before_the_line_is_refused() -> None:
    program = "from frazil.cli.target.with_parent import read_stdin; read_stdin()"
    done = subprocess.run(python(program), input=b'"half', capture_output=True)
    assert done.returncode != 0
    assert b"stdin ended before the line" in done.stderr


def test_an_exception_while_a_child_is_read_does_not_wait_for_it() -> None:
    writes = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with pytest.raises(ValueError, match="not JSON"), Child(python(writes)) as child:
        raise ValueError("not JSON")
    assert not child.is_running
