"""A client that follows the rules, and must get its rows whatever others do meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from prepclient import PrepClient, SyntheticImages
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.server import Server
from tests.support.waiting import wait_until

SOURCE = SyntheticImages(600, 32)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 7, "batch_size": 20}


@contextlib.contextmanager
def honest_reader(server: Server) -> Iterator[Callable[[], None]]:
    """A client in mid-epoch; calling it reads on. At the end its whole epoch must have been right."""
    expected = inline_rows(SOURCE, **SPEC)
    with PrepClient(SOURCE, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        iterator = iter(client)
        rows = rows_of(next(iterator))
        # ZeroMQ sends in a thread: what this client has said of the batch must not arrive amidst what comes now.
        session = client._attachment.session
        assert session is not None
        wait_until(lambda: session.released_upto in {job["position"] for job in server.status()["jobs"]})

        def read_on() -> None:
            rows.extend(rows_of(next(iterator)))

        yield read_on
        for batch in iterator:
            rows += rows_of(batch)
        assert rows == expected
