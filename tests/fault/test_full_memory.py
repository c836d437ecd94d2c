"""The budget for rings is firm: a job whose ring does not fit gets an error, and no other job notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prepclient import MemoryRefused, PrepClient
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.server import Server

pytestmark = pytest.mark.fault

COUNT = 1000


def test_a_third_ring_is_refused_and_the_first_two_go_on(new_server: Callable[..., Server], tree: ImageFolder) -> None:
    server = new_server(workers=2, memory="6M")  # a ring of four batches of 240 rows of 32 x 32 x 3 is 2.9 MiB

    def stream(seed: int) -> PrepClient:
        return PrepClient(
            tree, OPS, fields="dict", shuffle=True, seed=seed, batch_size=240, runtime_dir=server.runtime_dir
        )

    before = server.settled()
    with stream(1) as one, stream(2) as two, stream(3) as three:
        iterators = [iter(client) for client in (one, two)]
        rows = [rows_of(next(iterator)) for iterator in iterators]
        held = server.status()["memory"]
        for _ in range(3):
            with pytest.raises(MemoryRefused, match="6 MiB"):
                len(three)
        assert server.status()["memory"] == held
        assert len(server.status()["jobs"]) == 2
        for number, iterator in enumerate(iterators):
            rows[number] += [row for batch in iterator for row in rows_of(batch)]
        assert rows == [inline_rows(tree, shuffle=True, seed=seed, batch_size=240) for seed in (1, 2)]
        one.close()
        # There is room now, and the refused one is served by merely being used.
        assert [row for batch in three for row in rows_of(batch)] == inline_rows(
            tree, shuffle=True, seed=3, batch_size=240
        )
    server.assert_back_at(before)


def test_a_smaller_ring_is_given_where_the_wanted_does_not_fit(
    new_server: Callable[..., Server], tree: ImageFolder
) -> None:
    server = new_server(workers=2, memory="2M")
    with PrepClient(tree, OPS, fields="dict", shuffle=True, batch_size=240, runtime_dir=server.runtime_dir) as client:
        rows = [row for batch in client for row in rows_of(batch)]
        (lane,) = server.stream()["lanes"]
        assert lane["rows"] == 480
    assert rows == inline_rows(tree, shuffle=True, batch_size=240)
