"""A topic to read: through the named server or the one that serves the folder, else opened as the folder's owner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.cli.target.folder import check_exists, settings_on_disk
from frazil.cli.target.server import named_server

if TYPE_CHECKING:
    from frazil.client.topic import RemoteTopic
    from frazil.log.topic import Topic


@contextlib.contextmanager
def opened_topic(
    topic: str, server: str | None, data: Path | None, config: Path | None
) -> Iterator[Topic | RemoteTopic]:
    named = named_server(server, data, config)
    if named is not None:
        from frazil.client.storage import connect

        with connect(named.flight(), client=named.flight_credentials) as remote:
            yield remote.topic(topic, create=False)
        return
    from frazil.log.folder.ownership import served_by

    settings = settings_on_disk(data, config)
    check_exists(settings, topic)
    served = served_by(settings)
    if served is not None:
        from frazil.client.storage import connect
        from frazil.node.access.served import served_credentials

        with connect(served["flight"], client=served_credentials(settings, served)) as remote:
            yield remote.topic(topic, create=False)
        return
    from frazil.node.opening import open_topics

    with open_topics(settings) as storage:
        yield storage.topic(topic, create=False)
