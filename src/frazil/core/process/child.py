"""Child processes: the only module that starts other programs.

`Child` runs a verb of Frazil next to this process; `run_bounded` runs a short program to its end.

    life      the child's stdin is a pipe that closes when this process ends (`end_with_stdin`)
    signals   the child leads its own session: only this process gets Ctrl-C of the terminal
    output    stdout is read or dropped; stderr goes to a temporary file, of which only the end is read
    end       `stop` sends SIGTERM, waits up to a limit, then kills the child and its descendants
    secrets   go through stdin (`tell`): every user of the host can read a command line
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, NamedTuple, Self

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Size limit of a line, or of a child's whole answer: a maintenance round reports on thousands of tables."""
OUTPUT_BYTES_MAX = 64 * 1024


class Child:
    """A Frazil process. With `captured` its output is read here; else stdout is dropped and stderr inherited."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        captured: bool = True,
        env: Mapping[str, str] | None = None,
        new_session: bool = True,
    ) -> None:
        self._leads_group = new_session
        self._errors: IO[bytes] | None = tempfile.TemporaryFile() if captured else None  # noqa: SIM115 - see `close`
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if captured else subprocess.DEVNULL,
                stderr=self._errors,
                env=None if env is None else dict(env),
                start_new_session=new_session,
            )
        except BaseException:
            if self._errors is not None:
                self._errors.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None, "not captured"
        return self._process.stdout

    def tell(self, line: bytes) -> None:
        """Write a line to its stdin. Has no effect if the child has ended: its exit code shows that."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def answer(self) -> bytes:
        """Return its whole stdout. A child that writes more than `ANSWER_BYTES_MAX` is killed, its answer truncated."""
        found = self.stdout.read(ANSWER_BYTES_MAX + 1)
        if len(found) > ANSWER_BYTES_MAX:
            self.kill()
        return found

    def lines(self) -> Iterator[bytes]:
        """Yield its stdout line by line; a line of more than `ANSWER_BYTES_MAX` is split."""
        return iter(lambda: self.stdout.readline(ANSWER_BYTES_MAX), b"")

    def last_errors(self) -> list[str]:
        """Return the last lines of its stderr, once it has ended."""
        assert self._errors is not None, "not captured"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - OUTPUT_BYTES_MAX))
        return self._errors.read().decode(errors="replace").strip().splitlines()

    def wait(self, seconds_max: float | None = None) -> int:
        """Return its exit code; raises `TimeoutError` if it does not end in time."""
        try:
            return self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def terminate(self) -> None:
        self._process.terminate()  # no effect if it has ended

    def kill(self) -> None:
        if self._leads_group and self.is_running:
            _kill_group(self._process.pid)
        self._process.kill()  # no effect if it has ended

    def stop(self, seconds_max: float) -> bool:
        """End the process and its descendants. Returns whether it ended without being killed."""
        self.terminate()
        ended = True
        try:
            self.wait(seconds_max)
        except TimeoutError:
            ended = False
        if self._leads_group:
            _kill_group(self._process.pid)  # also after its own end: descendants may still run
        self.kill()
        self.close()
        return ended

    def close(self) -> None:
        """Wait for its end, and only then close the pipes: closing its stdin would end it."""
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # unread input of a child that has ended
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # its output is no longer read: it would wait for room in the pipe, and we for its end
            self.kill()
        self.close()


class Finished(NamedTuple):
    """The exit code of a program and the first `OUTPUT_BYTES_MAX` of its output."""

    code: int
    stdout: str
    stderr: str


def run_bounded(command: Sequence[str], *, seconds_max: float, cwd: str | None = None) -> Finished:
    """Run a program to its end, without stdin. Kills it and raises `TimeoutError` if it takes too long."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - the caller names the program
            command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True
        )
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} did not end in {seconds_max:g} s") from None
        finally:
            if process.poll() is None:
                _kill_group(process.pid)
                process.wait()
        return Finished(code, _first(out), _first(errors))


def _first(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(OUTPUT_BYTES_MAX).decode(errors="replace")


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
