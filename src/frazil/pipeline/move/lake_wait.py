"""Wait at startup for an unavailable catalog or store, with back-off, and report the reason."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from frazil.core.backoff import backoff
from frazil.core.clock import Clock
from frazil.core.errors import LakeUnavailable
from frazil.node.movers.status_file import StatusFile

SILENCE_SECONDS_MAX = 3.0
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 30.0

_log = logging.getLogger("frazil.pipeline")


def wait_for_lake(
    check: Callable[[], None],
    status: StatusFile,
    may_tell: Callable[[], bool],
    stop: threading.Event,
    clock: Clock,
) -> None:
    """Return once `check` succeeds, or on `stop`. A standby mover waits silently.

    Only an unavailable lake is waited for: a wrong setting is raised, because waiting does not fix it.
    """
    since_us, failures, said = clock.now_us(), 0, ""

    def tell(message: str, pause_seconds: float) -> None:
        if may_tell():
            status.waiting(message, since_us, clock.now_us() + int(pause_seconds * 1_000_000))

    while not stop.is_set():
        try:
            _checked(check, lambda seconds: tell(f"catalog: no answer for {seconds:g} s, and it is still asked", 0))
        except LakeUnavailable as error:
            failures += 1
            pause_seconds = backoff(failures, first=PAUSE_SECONDS_MIN, limit=PAUSE_SECONDS_MAX)
            tell(error.message, pause_seconds)
            if error.message != said:
                _log.error("%s; rows wait in the log, and it is asked again until it answers", error)
                said = error.message
            stop.wait(pause_seconds)
        else:
            if said:
                _log.info("the catalog and the store answer now")
            if may_tell():
                status.starting()
            return


def _checked(check: Callable[[], None], on_silence: Callable[[float], None]) -> None:
    """Report a hanging lake before its own timeouts, of a minute and more, end the call."""
    found: list[BaseException] = []

    def work() -> None:
        try:
            check()
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            found.append(error)

    asking = threading.Thread(target=work, name="frazil-check", daemon=True)
    asking.start()
    silent_seconds = 0.0
    while True:
        asking.join(SILENCE_SECONDS_MAX)
        if not asking.is_alive():
            break
        silent_seconds += SILENCE_SECONDS_MAX
        on_silence(silent_seconds)
    if found:
        raise found[0]
