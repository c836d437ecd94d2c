"""A client that follows the rules, and must get its rows whatever others do meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from prepclient import PrepClient, SyntheticImages
from tests.support.clients import OPS, await_heard, inline_rows, rows_of
from tests.support.server import Server

SOURCE = SyntheticImages(600, 32)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 7, "batch_size": 20}


@contextlib.contextmanager
def honest_reader(server: Server) -> Iterator[Callable[[], None]]:
    """A client in mid-epoch; calling it reads on. At the end its whole epoch must have been right."""
    expected = inline_rows(SOURCE, **SPEC)
    with PrepClient(SOURCE, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        iterator = iter(client)
        rows = rows_of(next(iterator))
        await_heard(server, client)  # what it has said of the batch must not arrive amidst what comes now

        def read_on() -> None:
            rows.extend(rows_of(next(iterator)))

        yield read_on
        for batch in iterator:
            rows += rows_of(batch)
        assert rows == expected
