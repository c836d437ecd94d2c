"""``prepserver pack`` as users run it, and its result, served by a daemon."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prepclient import BadSampleError, ImageFolder, Packed, PrepClient, Sharding
from prepserver.cli import exits
from prepserver.pack.expression import source_from
from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.transcode import Transcoder
from tests.support import leaks
from tests.support.clients import OPS, Rows, inline_rows, read
from tests.support.complete import needs_kernels
from tests.support.forked import cli
from tests.support.photos import jpeg, pixels, saved
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

COUNT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty images in three classes: JPEGs of several kinds and some that cannot be transcoded."""
    root = tmp_path_factory.mktemp("data")
    for index in range(COUNT):
        path = root / "abc"[index % 3] / f"{index:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        if index % 10 == 7:
            data = saved(pixels(50 + index, 70, index), "PNG")
        else:
            data = jpeg(60 + index, 90 + 3 * index, ("444", "420", "422", "Gray")[index % 4], index)
        path.write_bytes(data)
    return root


def shards_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("*.packed")}


def running(folder: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "prepserver.cli", "pack", str(folder), str(out), "--workers", "2", *more]
    return subprocess.Popen(
        words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_records(out: Path, process: subprocess.Popen[str]) -> None:
    def are_there() -> bool:
        assert process.poll() is None
        return any(path.stat().st_size > 50_000 for path in out.glob("unfinished.shard"))

    wait_until(are_there)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_whenever_killed_a_second_run_makes_the_same_files(folder: Path, tmp_path: Path, how: signal.Signals) -> None:
    written = f"Mix([Take(ImageFolder('{folder}'), 30), SyntheticImages(270, 120)], [1, 9])"
    words = ("--transcoder", "pillow", "--quality", "70", "--max-side", "100")
    process = running(Path(written), tmp_path / "out", *words)
    wait_for_records(tmp_path / "out", process)
    crew = leaks.children(process.pid)
    process.send_signal(how)
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert ("run the same command again to continue" in said) == (how == signal.SIGINT)
    wait_until(lambda: all(map(leaks.gone, crew)))
    done = cli("pack", written, str(tmp_path / "out"), *words, "--json")
    assert done.returncode == exits.OK
    assert "are already packed" in done.stderr
    spec, options = source_from(written), Options(Transcoder(False, quality=70, max_side=100), workers=2)
    assert spec is not None
    whole = pack(spec, tmp_path / "whole", options, Report())
    assert 0 < json.loads(done.stdout)["this_run"]["samples"] < whole.this_run["samples"] == 300
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "whole")


@pytest.fixture(scope="module")
def packed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    done = cli("pack", str(folder), str(out), "--json")
    assert done.returncode == exits.OK, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["samples"], summary["indexed"], summary["kept"], summary["skipped"]) == (COUNT, 54, 6, 0)
    return out


def served(server: Server, root: Path, **arguments: Any) -> Rows:
    with PrepClient(Packed(root), OPS, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        return read(client)


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_a_daemon_serves_packed_data_as_inline_mode_does(
    shared_server: Server, packed: Path, shuffle: bool | str
) -> None:
    arguments: dict[str, Any] = {"shuffle": shuffle, "batch_size": 7, "seed": 5}
    rows = served(shared_server, packed, **arguments)
    assert rows == inline_rows(Packed(packed), **arguments)
    assert len(rows) == COUNT


@needs_kernels
def test_packed_losslessly_it_gives_the_very_rows_of_the_folder(folder: Path, packed: Path) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "batch_size": 16, "seed": 3}
    assert inline_rows(Packed(packed), **arguments) == inline_rows(ImageFolder(folder), **arguments)


def test_ranks_share_a_packed_dataset_without_overlap(packed: Path) -> None:
    parts = [
        inline_rows(Packed(packed), shuffle=True, batch_size=5, seed=3, sharding=Sharding(rank, 3), job="three")
        for rank in range(3)
    ]
    seen = [row for part in parts for row in part]
    assert len(seen) == COUNT
    assert len(set(map(repr, seen))) == COUNT


def test_damage_names_the_original_file(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "out")
    shard = tmp_path / "out" / "shard-00000.packed"
    data = bytearray(shard.read_bytes())
    data[30] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadSampleError, match=r"a/00\.jpg: shard-00000\.packed is damaged"):
        inline_rows(Packed(tmp_path / "out"), shuffle=False, batch_size=5, on_error="raise")


def test_a_full_disk_loses_nothing_and_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small" / "out"
    out.parent.mkdir()
    pack = f"{sys.executable} -m prepserver.cli pack {folder} {out} --quiet --workers 1"
    script = f"mount -t tmpfs -o size=200k none {out.parent} || exit 99; {pack}; a=$?; mount -o remount,size=50m " \
        f"{out.parent}; {pack} --json; echo $a $?"  # fmt: skip
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if done.returncode == 99 or "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("no mount namespaces here")
    assert "no space left" in done.stderr
    assert "are already packed" in done.stderr
    summary, codes = done.stdout.splitlines()
    assert codes == f"{exits.FAILED} {exits.OK}"
    assert json.loads(summary)["samples"] == COUNT
    assert 0 < json.loads(summary)["this_run"]["samples"] < COUNT
