"""Open every topic in the background after the server started, so that a broken one is detected early."""

from __future__ import annotations

import logging
import threading
from typing import Any

from frazil.core.errors import Closed, FrazilError, TopicNotFound
from frazil.log.storage import Storage

_log = logging.getLogger("frazil.serve")


class Opening:
    """One pass over all topics in its own thread. A topic that cannot be opened does not delay the others."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stop = threading.Event()
        self._refused: dict[str, FrazilError] = {}
        self._thread = threading.Thread(target=self._work, name="frazil-opening", daemon=True)
        self.total = len(storage.topics())
        self.opened = 0
        self.done = False

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        self._stop.set()
        self.wait()

    def problems(self) -> list[dict[str, Any]]:
        """Return topics that cannot be used: refused at opening, or failed since."""
        present = set(self._storage.topics())
        found = [{"topic": name, **error.as_dict()} for name, error in sorted(self._refused.items()) if name in present]
        for topic in self._storage.opened_topics():
            failed = topic.log.failed
            if failed is not None:
                found.append({"topic": topic.name, **failed.as_dict()})
        return found

    def _work(self) -> None:
        for name in self._storage.topics():
            if self._stop.is_set():
                return
            try:
                self._storage.topic(name, create=False)
            except TopicNotFound:
                continue  # deleted since
            except Closed:
                return
            except FrazilError as error:
                self._refused[name] = error
                _log.error("%s", error, extra={"topic": name})
            except OSError as error:
                self._refused[name] = FrazilError(f"{name} could not be opened: {error}", topic=name)
                _log.error("%s could not be opened: %s", name, error, extra={"topic": name})
            else:
                self.opened += 1
        self.done = True
        _log.info("%d of %d topics are open", self.opened, self.total)
