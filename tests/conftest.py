"""Fixtures that start real daemons and clients; the daemons' logs are shown when a test fails."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import ClientProcess
from tests.support.complete import missing
from tests.support.server import ALIVE, Server
from tests.support.tiny_images import photo_tree

_NOT_OURS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("NODE_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
    *("PREPSERVER_RUNTIME_DIR", "NOTIFY_SOCKET", "COLUMNS", "LINES", "COLORTERM", "FORCE_COLOR", "NO_COLOR"),
)
_LOG_SHOWN_CHARS = 6000

hypothesis.settings.register_profile("patient", deadline=None)  # a loaded machine is slow, not wrong
hypothesis.settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds the user's daemon, launcher or cache, or hangs on the user's terminal or umask."""
    umask = os.umask(0o022)  # with another one, a folder of a test may be one that others can write to
    with pytest.MonkeyPatch.context() as patch:
        for name in _NOT_OURS:
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm")
        # Nets of examples are small: torch's threads would spin for each other, on cores that other tests need.
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    os.umask(umask)


def pytest_collection_finish() -> None:
    """What pytest has collected stays: without this, each whole collection of garbage in a test takes 0.1 s."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs the compiled kernels is skipped without them, or fails in CI."""
    if item.get_closest_marker("needs_kernels") is not None:
        from prepserver.transform import native  # which imports torch

        if native.kernels() is None:
            missing(native.path().reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds what the daemons have said since the test before this one to the report of a failure."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    for server in ALIVE:
        text = server.log()
        if report.failed:
            report.sections.append(
                (f"log of the daemon in {server.runtime_dir}", text[server.said :][-_LOG_SHOWN_CHARS:])
            )
        if report.when == "teardown":
            server.said = len(text)
    return report  # type: ignore[return-value]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 107 bytes: `tmp_path` may be longer."""
    with tempfile.TemporaryDirectory(prefix="pst-") as path:
        yield Path(path)


@pytest.fixture
def new_server() -> Iterator[Callable[..., Server]]:
    """Starts daemons for one test; at its end they are stopped and nothing of them may be left."""
    with contextlib.ExitStack() as stack:
        yield lambda **arguments: stack.enter_context(Server(**arguments))


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Server]:
    """One daemon with two workers for the tests of a module."""
    with Server(workers=2) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """The module's daemon; after each test its descriptors, ring memory and processes are what they were at first."""
    # One baseline for all: one taken later could hold what a worker has yet to drop of the test before.
    shared_server.baseline = shared_server.baseline or shared_server.settled()
    yield shared_server
    shared_server.assert_back_at(shared_server.baseline)


@pytest.fixture
def client_process() -> Iterator[Callable[..., ClientProcess]]:
    """Starts training processes for one test."""
    made: list[ClientProcess] = []

    def make(where: Server | Path, *arguments: Any, **more: Any) -> ClientProcess:
        made.append(ClientProcess(where.runtime_dir if isinstance(where, Server) else where, *arguments, **more))
        return made[-1]

    yield make
    for client in made:
        client.end()


@pytest.fixture(scope="module")
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """So many small images as the module's `COUNT` says."""
    return photo_tree(tmp_path_factory.mktemp("tree"), request.module.COUNT)


@pytest.fixture(scope="session")
def photos() -> Path:
    """A folder of class folders of real photos."""
    given = os.environ.get("PREPSERVER_TEST_PHOTOS")
    folder = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data" / "photos"
    if not folder.is_dir():
        pytest.skip(f"no real photos: set PREPSERVER_TEST_PHOTOS to a folder of class folders ({folder} is none)")
    return folder
