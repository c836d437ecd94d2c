"""A client in a forked child: an error that says what to do, before any memory is touched."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from prepclient import ForkedClient, PrepClient, RandomResizedCrop, SyntheticImages
from prepserver.pipeline.ops import Op
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SOURCE = SyntheticImages(200, 32)
SPEC: dict[str, Any] = {"batch_size": 16, "shuffle": True, "fields": "dict"}


def in_fork(work: Callable[[], None]) -> int:
    """The exit status of a forked child that does `work`."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(int(PATIENCE_S))  # ends a hang
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - it must not come back to pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("way", [{"inline": True}, {}, {"zero_copy": True}])
def test_a_used_client_raises_in_a_fork_and_works_in_its_parent(way: dict[str, Any], server: Server) -> None:
    with PrepClient(SOURCE, OPS, runtime_dir=server.runtime_dir, **SPEC, **way) as client:
        batches = iter(client)
        rows = rows_of(next(batches))

        def child() -> None:
            for use in (lambda: next(batches), lambda: iter(client), lambda: len(client)):
                with pytest.raises(ForkedClient, match="num_workers=0"):
                    use()
            client.state_dict()
            client.close()
            client.close()

        assert in_fork(child) == 0
        for batch in batches:
            rows += rows_of(batch)
    assert rows == inline_rows(SOURCE, **{k: v for k, v in SPEC.items() if k != "fields"})


def test_pickling_says_what_to_do_instead() -> None:
    client = PrepClient(SOURCE, OPS, inline=True, **SPEC)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(client)
    process = multiprocessing.get_context("spawn").Process(target=len, args=(client,))
    with pytest.raises(TypeError, match="in the process that uses it"):
        process.start()


BIG: list[Op] = [RandomResizedCrop(128)]  # torch computes such batches with several threads


def read_in_another_process(runtime_dir: str | None) -> None:
    where: dict[str, Any] = {"inline": True} if runtime_dir is None else {"runtime_dir": runtime_dir}
    with PrepClient(SOURCE, BIG, batch_size=64, normalize=((0.5,), (0.5,)), **where) as client:
        assert sum(len(labels) for _, labels in client) == 200


@pytest.fixture
def used(server: Server) -> Iterator[PrepClient]:
    """A client in the middle of an epoch, of a process in which torch has a pool of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    with PrepClient(SOURCE, BIG, batch_size=64, runtime_dir=server.runtime_dir) as client:
        next(iter(client))
        torch.ones(10_000_000).add_(1)
        yield client
        torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("inline", [True, False])
def test_a_client_made_in_a_child_works(method: str, inline: bool, used: PrepClient, server: Server) -> None:
    where = None if inline else str(server.runtime_dir)
    context: Any = multiprocessing.get_context(method)  # mypy knows no Process of it
    process = context.Process(target=read_in_another_process, args=(where,))
    process.start()
    process.join(PATIENCE_S)
    ended = process.exitcode
    process.kill()
    assert ended == 0


def test_a_used_client_that_is_closed_in_a_fork_works_there(used: PrepClient) -> None:
    def child() -> None:
        used.close()
        assert sum(len(labels) for _, labels in used) == 200
        used.close()

    assert in_fork(child) == 0
    assert sum(len(labels) for _, labels in used) == 200  # the parent's next epoch


class Holder(IterableDataset[Any]):
    """A dataset around a client."""

    def __init__(self, client: PrepClient) -> None:
        self.client = client

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client)


def test_a_dataloader_worker_that_holds_a_used_client_says_so(used: PrepClient) -> None:
    batches = iter(DataLoader(Holder(used), batch_size=None, num_workers=1, timeout=PATIENCE_S))
    with pytest.raises(ForkedClient, match="num_workers=0"):
        next(batches)
    del batches
    gc.collect()  # ends the worker


def test_a_dataloader_worker_may_be_the_first_to_use_a_client(used: PrepClient, server: Server) -> None:
    with PrepClient(SOURCE, BIG, batch_size=64, runtime_dir=server.runtime_dir) as client:
        loader = DataLoader(Holder(client), batch_size=None, num_workers=1, timeout=PATIENCE_S)
        assert sum(len(labels) for _, labels in loader) == 200
