"""The errors of a training script that cannot get its rows: which one, and what to do."""

from __future__ import annotations

import os
import re
import shutil
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import (
    BadSampleError,
    FileList,
    ImageFolder,
    InvalidSpec,
    MemoryRefused,
    Normalize,
    NoServer,
    PrepClient,
    RandomResizedCrop,
    SourceUnavailable,
    SyntheticImages,
    VersionMismatch,
)
from prepserver.pipeline import sources
from prepserver.protocol import versions
from prepserver.protocol.versions import PROTOCOL
from tests.support.clients import OPS, ClientError, ClientProcess, inline_rows, read
from tests.support.odd_images import header_bomb
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
NewServer = Callable[..., Server]
SOURCE = SyntheticImages(64, 32)
NOBODY = 65534

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


def test_no_server_says_how_to_start_one(tmp_path: Path) -> None:
    with PrepClient(SOURCE, OPS, runtime_dir=tmp_path, connect_s=0) as client, pytest.raises(NoServer) as caught:
        len(client)
    text = str(caught.value)
    assert f"prepserver start --runtime-dir {tmp_path}" in text
    assert "inline=True" in text
    assert "workers=" in text


def test_clients_wait_for_a_daemon_that_is_starting(new_server: NewServer, client_process: Start) -> None:
    """One finds a socket on which nobody listens, the other not even the directory; a third one does not wait."""
    server = new_server(workers=1)
    server.kill()
    assert (server.runtime_dir / "attach.sock").exists()
    hasty = PrepClient(SOURCE, OPS, batch_size=64, runtime_dir=server.runtime_dir, connect_s=0)
    with pytest.raises(NoServer):
        len(hasty)
    clients = []
    for _ in range(2):
        clients.append(client_process(server, SOURCE, batch_size=64, connect_s=PATIENCE_S))
        clients[-1].order("attach")
        wait_until(lambda: "(connect_s)" in clients[-1].errors)
        shutil.rmtree(server.runtime_dir, ignore_errors=True)
    server.start()
    assert [client.answer() for client in clients] == [1, 1]
    assert [client.errors.count("connect_s") for client in clients] == [1, 1]
    with hasty:
        assert len(list(hasty)) == 1


def test_no_daemon_within_connect_s_is_an_error_that_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PrepClient(SOURCE, OPS, runtime_dir=tmp_path, connect_s=0.05) as client, pytest.raises(NoServer) as caught:
        len(client)
    assert f"None started in {tmp_path} within connect_s = 0.05" in str(caught.value)
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1  # and none for each attempt
    assert len(caplog.records) == 1


def test_nobody_waits_where_no_daemon_can_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / ("x" * 120)):
        with PrepClient(SOURCE, OPS, runtime_dir=place) as client, pytest.raises(NoServer):
            len(client)
    assert caplog.text == ""


@as_root
def test_another_users_daemon_is_no_permission(server: Server, client_process: Start) -> None:
    # The way to the sockets is open, so that it is the daemon's own directory that says no.
    os.chmod(server.home, 0o711)
    assert stat.S_IMODE(server.runtime_dir.stat().st_mode) == 0o700
    client = client_process(server, SOURCE, uid=NOBODY)
    with pytest.raises(ClientError) as caught:
        client.ask("attach")
    assert caught.value.kind == "NoPermission"
    assert f"uid {NOBODY}" in caught.value.text
    assert "--runtime-dir" in caught.value.text
    os.chmod(server.runtime_dir, 0o711)
    try:
        client = client_process(server, SOURCE, uid=NOBODY)
        with pytest.raises(ClientError) as caught:
            client.ask("attach")
        assert caught.value.kind == "NoPermission"
        assert "group" in caught.value.text
        assert "the socket belongs to user root, group root, mode 660. A daemon of your own" in caught.value.text
    finally:
        os.chmod(server.runtime_dir, 0o700)


def test_a_client_of_another_protocol_is_told_both_versions(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PROTOCOL", PROTOCOL + 7)
    with PrepClient(SOURCE, OPS, runtime_dir=server.runtime_dir) as client, pytest.raises(VersionMismatch) as caught:
        len(client)
    assert f"protocol {PROTOCOL + 7}" in str(caught.value)
    assert f"speaks {PROTOCOL}" in str(caught.value)
    assert "upgrade the daemon first" in str(caught.value)


def test_a_wrong_argument_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="float") as caught:
        PrepClient(SOURCE, [RandomResizedCrop(32), Normalize([0.5] * 3, [0.2] * 3)], runtime_dir=tmp_path)
    assert caught.value.field == "pipeline[1].mean"  # as the user counts them
    wrong: dict[str, Any] = {"batch_size": 0, "seed": -1, "shuffle": "some", "on_error": "ignore", "prefetch": 0}
    for name, value in wrong.items():
        with pytest.raises(InvalidSpec, match=name) as caught:
            PrepClient(SOURCE, OPS, runtime_dir=tmp_path, **{name: value})
        assert caught.value.field == name


def test_memory_short_says_asked_free_limit_and_knob(new_server: NewServer) -> None:
    server = new_server(workers=1, memory="3M")
    with (
        PrepClient(SOURCE, [RandomResizedCrop(224)], batch_size=64, runtime_dir=server.runtime_dir) as client,
        pytest.raises(MemoryRefused) as caught,
    ):
        len(client)
    text = str(caught.value)
    # two batches of 64 rows of 224 x 224 x 3 bytes and their labels and indices
    asked_mib = -(-2 * 64 * 224 * 224 * 3 // 2**20)
    assert re.search(rf"\b{asked_mib}(\.\d)? MiB|\b1[89](\.\d)? MiB", text), text
    assert "3 MiB" in text
    assert "free" in text
    assert "--memory" in text
    assert "batch_size" in text
    with PrepClient(SOURCE, OPS, batch_size=16, runtime_dir=server.runtime_dir) as client:
        assert len(list(client)) == 4  # a smaller one fits


@pytest.mark.parametrize(("kind", "name"), [(ImageFolder, "tree"), (FileList, "list.txt")])
@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_or_missing_dataset_is_named(
    server: Server, tmp_path: Path, kind: Any, name: str, is_there: bool
) -> None:
    if is_there:
        (tmp_path / "tree" / "cats").mkdir(parents=True)
        (tmp_path / "list.txt").write_text("")
    for where in ({"runtime_dir": server.runtime_dir}, {"inline": True}):
        with PrepClient(kind(tmp_path / name), OPS, **where) as client, pytest.raises(SourceUnavailable) as caught:
            len(client)
        assert str(tmp_path / name) in str(caught.value)


BROKEN = {"cats/broken.jpg": b"no image", "cats/short.jpg": jpeg(1)[:60], "dogs/bomb.png": header_bomb()}


@pytest.fixture
def damaged(tmp_path: Path) -> sources.ImageFolder:
    """Forty good images and three bad ones."""
    source = photo_tree(tmp_path / "tree", 40)
    for name, data in BROKEN.items():
        (tmp_path / "tree" / name).write_bytes(data)
    return source


def bad_indices(source: sources.ImageFolder) -> list[int]:
    paths = sorted(str(path.relative_to(source.root)) for path in Path(source.root).rglob("*.*"))
    return [paths.index(name) for name in sorted(BROKEN)]


def test_a_bad_sample_raises_with_its_path_and_batches_go_on(server: Server, damaged: sources.ImageFolder) -> None:
    bad = bad_indices(damaged)
    with PrepClient(damaged, OPS, fields="dict", batch_size=1, runtime_dir=server.runtime_dir) as client:
        raised, got, iterator = [], list[int](), iter(client)
        for _ in range(43):
            try:
                got += next(iterator)["index"].tolist()
            except BadSampleError as e:
                raised.append(e)
        assert list(iterator) == []
    assert [e.index for e in raised] == bad
    for name, error in zip(sorted(BROKEN), raised, strict=True):
        assert name in error.reason
        assert name in str(error)
        assert "on_error" in str(error)
    assert "60000" in raised[-1].reason  # what the header claims
    assert sorted(got + bad) == list(range(43))


@pytest.mark.parametrize("batch_size", [8, 43])
def test_skip_and_mask_replace_bad_samples_by_one_rule(
    server: Server, damaged: sources.ImageFolder, batch_size: int
) -> None:
    expected = inline_rows(damaged, batch_size=batch_size, shuffle="full", on_error="skip")
    assert len(expected) == 43
    bad = set(bad_indices(damaged))
    assert not bad & {index for index, _ in expected}
    where: dict[str, Any] = {"fields": "dict", "batch_size": batch_size, "shuffle": "full"}
    where["runtime_dir"] = server.runtime_dir
    with PrepClient(damaged, OPS, on_error="skip", **where) as client:
        assert read(client) == expected
        assert client.stats()["bad_samples"] == 3
    with PrepClient(damaged, OPS, on_error="mask", **where) as client:
        batches = list(client)
    valid = [flag for batch in batches for flag in batch["valid"].tolist()]
    indices = [index for batch in batches for index in batch["index"].tolist()]
    assert valid.count(False) == 3
    assert sorted(index for index, flag in zip(indices, valid, strict=True) if flag) == sorted(set(range(43)) - bad)
    with PrepClient(damaged, OPS, on_error="mask", batch_size=43, runtime_dir=server.runtime_dir) as client:
        ((_, _, flags),) = list(client)
        assert flags.tolist() == [index not in bad for index in range(43)]


def test_a_file_that_vanishes_after_the_scan_is_a_bad_sample(server: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 800)
    with PrepClient(source, OPS, batch_size=50, runtime_dir=server.runtime_dir) as client:
        iterator = iter(client)
        next(iterator)
        (tmp_path / "dogs" / "0790.jpg").unlink()
        with pytest.raises(BadSampleError, match=r"dogs/0790\.jpg") as caught:
            list(iterator)
        assert caught.value.index == 790
