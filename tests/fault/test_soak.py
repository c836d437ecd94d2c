"""Minutes of jobs that come, read, break off and are killed, beside one that reads on: nothing grows, no byte is wrong.

``PREPSERVER_SOAK_S`` says how long (default 180); ``PREPSERVER_SOAK_SEED`` which history.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from prepclient import PrepClient
from tests.support import leaks
from tests.support.clients import OPS, ClientProcess, inline_rows, read
from tests.support.server import Server
from tests.support.tiny_images import photo_tree

pytestmark = [pytest.mark.fault, pytest.mark.soak, pytest.mark.timeout(7200)]

COUNT = 2000


def test_nothing_grows_and_no_byte_is_wrong(
    new_server: Callable[..., Server],
    client_process: Callable[..., ClientProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    duration_s = float(os.environ.get("PREPSERVER_SOAK_S", "180"))
    rng = random.Random(int(os.environ.get("PREPSERVER_SOAK_SEED", "1")))
    source = photo_tree(tmp_path_factory.mktemp("tree"), COUNT)
    server = new_server(workers=2)
    spec: dict[str, Any] = {"shuffle": True, "seed": 1}
    expected = inline_rows(source, epochs=4, batch_size=50, **spec)
    before = server.settled()
    with PrepClient(source, OPS, batch_size=64, runtime_dir=server.runtime_dir, **spec) as warm:
        list(warm)
    server.assert_back_at(before)
    threads = leaks.threads(server.pid)
    resident = leaks.resident_bytes(server.pid)
    until_s = time.monotonic() + duration_s
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
        crowd = [client_process(server, source, batch_size=rng.choice((7, 50, 128)), **spec) for _ in range(3)]
        for client in crowd:
            client.order("read", pause_s=rng.choice((0, 0.01)))
        with PrepClient(
            source, OPS, fields="dict", batch_size=rng.choice((16, 50)), runtime_dir=server.runtime_dir, **spec
        ) as steady:
            len(steady)  # attached: it has a place
            start = steady.state_dict()["position"] % COUNT
            rows = read(steady)
            if start == 0:
                assert rows in [expected[k * COUNT : (k + 1) * COUNT] for k in range(4)]
            assert sorted(index for index, _ in rows) == list(range(COUNT))
            victim = rng.choice(("worker", "client", "stopped client", "nobody"))
            if victim == "worker":
                os.kill(rng.choice(server.workers()), signal.SIGKILL)
            elif victim == "client":
                crowd[0].kill()
            elif victim == "stopped client":
                crowd[0].kill(signal.SIGSTOP)
                crowd[0].kill()
        for client in crowd:
            client.end()
        server.assert_back_at(before)
        assert leaks.threads(server.pid) == threads
    assert rounds > 0
    # Counters and allocator pages, but nothing per job: a leaked ring alone is 1.5 MiB a round.
    assert leaks.resident_bytes(server.pid) - resident < (32 << 20)
