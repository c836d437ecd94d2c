"""What workers must not do, tried from inside; and all that they must read."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prepclient import PrepClient
from prepserver.cli import exits
from prepserver.pipeline.sources import FileList, ImageFolder, SourceSpec
from prepserver.worker.syscalls import call
from tests.support import probes
from tests.support.clients import OPS, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.server import Server, environment
from tests.support.tiny_images import photo_tree
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the probes name system calls of x86-64"),
]

N = 12
PARTS = r"landlock \d+, seccomp, no_new_privs"

IN_A_WORKER = """
import json, os, sys
if "prepserver.worker.zygote" in sys.orig_argv:
    sys.path += {paths!r}
    from prepserver.worker import loop
    from tests.support import probes
    def fill(*arguments, real=loop.fill):
        global fill
        found = json.dumps(probes.probe({inside!r}, {outside!r}, os.getppid()))
        os.write(2, f"PROBED {{found}}\\n".encode())  # in one piece: another worker writes there, too
        loop.fill = real
        return real(*arguments)
    loop.fill = fill
"""


def python(script: str, *arguments: str) -> str:
    """Runs a script in a process of its own, with one thread, and returns what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


@pytest.fixture(scope="module", autouse=True)
def _whole_sandbox() -> None:
    missing = python("from prepserver.worker.sandbox import find_out; print(find_out().missing, end='')")
    if missing:
        pytest.skip(f"this machine lacks {missing}")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "secret"
    path.parent.mkdir()
    path.write_bytes(b"secret")
    return path


def taken_over(
    new_server: Callable[..., Server], sandbox: str, tmp_path: Path, secret: Path
) -> tuple[Server, dict[str, str]]:
    """A daemon, and the outcome of all probes in one of its workers, which then goes on with its task."""
    spec = photo_tree(tmp_path / "data", N)
    inside = tmp_path / "data" / "notes"
    inside.write_text("beside the pictures")
    (tmp_path / "site").mkdir()
    script = IN_A_WORKER.format(paths=sys.path, inside=str(inside), outside=str(secret))
    (tmp_path / "site/sitecustomize.py").write_text(script)
    path = os.pathsep.join([environment()["PYTHONPATH"], str(tmp_path / "site")])
    server = new_server(settings={"sandbox": sandbox}, env={"PYTHONPATH": path})
    with PrepClient(spec, OPS, batch_size=N, runtime_dir=server.runtime_dir) as client:
        assert len(next(iter(client))[0]) == N
    found = re.search("^PROBED (.*)$", server.log(), re.MULTILINE)
    assert found, server.log()
    return server, dict(json.loads(found[1]))


def same_rows(server: Server, spec: SourceSpec) -> None:
    """One epoch is what it is without any daemon: no row is a replacement."""
    with PrepClient(spec, OPS, fields="dict", batch_size=4, runtime_dir=server.runtime_dir) as client:
        assert read(client) == inline_rows(spec, batch_size=4)


def linked_tree(root: Path, spec: ImageFolder) -> ImageFolder:
    """The files of a dataset, each as a link."""
    for file in Path(spec.root).rglob("*.jpg"):
        link = root / file.relative_to(spec.root)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return ImageFolder(str(root))


def test_a_worker_that_is_taken_over_can_do_nothing(
    new_server: Callable[..., Server], tmp_path: Path, secret: Path
) -> None:
    _, found = taken_over(new_server, "on", tmp_path, secret)
    assert found == {name: probes.expected(name) for name in found}


def test_without_the_sandbox_the_same_tries_succeed(
    new_server: Callable[..., Server], tmp_path: Path, secret: Path
) -> None:
    """Status shows it, and the log warns."""
    server, found = taken_over(new_server, "off", tmp_path, secret)
    assert {found[name] for name in ("read outside", "unix socket", "fork", "signal the daemon")} == {"done"}
    assert server.status()["sandbox"]["parts"] == "none"
    assert "sandbox: off\n" in cli("status", "--runtime-dir", str(server.runtime_dir)).stdout
    assert re.search('WARNING .*sandbox = "off"', server.log())
    (pid, _) = server.workers()
    assert "Seccomp:\t0\n" in Path(f"/proc/{pid}/status").read_text()


def test_status_shows_the_sandbox_and_the_kernel_confirms_it(server: Server) -> None:
    found = server.status()["sandbox"]
    assert (found["mode"], found["missing"]) == ("auto", "")
    assert re.fullmatch(PARTS, found["parts"])
    shown = cli("status", "--runtime-dir", str(server.runtime_dir)).stdout
    assert f"sandbox: {found['parts']}\n" in shown
    for pid in server.workers():
        said = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in said
        assert "Seccomp:\t2\n" in said


# The kernel stacks 16 rulesets at most: in this process's children there is no more Landlock to be had.
WITHOUT_LANDLOCK = """
import os, struct, sys
from prepserver.worker.syscalls import call, prctl
prctl(38, 1)
for _ in range(16):
    call(446, call(444, struct.pack("=QQQ", 1 << 6, 0, 0), 24, 0), 0)
os.execv(sys.executable, [sys.executable, "-m", "prepserver.cli", "start", *sys.argv[1:]])
"""


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_what_is_missing_is_said_and_refused_where_all_is_wanted(mode: str, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'sandbox = "{mode}"\n')
    started = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_LANDLOCK, "--config", str(config), "--runtime-dir", str(tmp_path / "run"),
         "--workers", "1"],
        env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stderr is not None
    said = ""
    while "ready in" not in said and (line := started.stderr.readline()):
        said += line
    started.terminate()
    said += started.communicate(timeout=PATIENCE_S)[1]
    assert "lacks landlock (Argument list too long" in said
    assert started.returncode == (exits.USAGE if mode == "on" else 0)
    assert ("sandbox has only seccomp, no_new_privs" in said) == (mode == "auto")


def test_a_dataset_of_links_is_read_as_ever(server: Server, tmp_path: Path) -> None:
    real = photo_tree(tmp_path / "far" / "away", N)
    files = linked_tree(tmp_path / "files", real)
    (tmp_path / "folders").mkdir()
    for folder in Path(real.root).iterdir():
        (tmp_path / "folders" / folder.name).symlink_to(folder)
    listed = tmp_path / "list.csv"
    listed.write_text("".join(f"{file},0\n" for file in sorted(Path(files.root).rglob("*.jpg"))))
    for spec in (files, ImageFolder(str(tmp_path / "folders")), FileList(str(listed))):
        same_rows(server, spec)


def test_a_second_dataset_replaces_the_workers_and_nothing_else(server: Server, tmp_path: Path) -> None:
    train, test = photo_tree(tmp_path / "train", 4 * N), photo_tree(tmp_path / "test", N)
    with PrepClient(train, OPS, fields="dict", batch_size=4, prefetch=8, runtime_dir=server.runtime_dir) as client:
        batches = iter(client)
        got = [row for _ in range(3) for row in rows_of(next(batches))]
        before = server.workers()
        same_rows(server, test)
        same_rows(server, test)
        wait_until(lambda: len(set(server.workers()) - set(before)) == 2, why=server.log)
        assert [worker["restarts"] for worker in server.status()["workers"]] == [0, 0]
        got += [row for batch in batches for row in rows_of(batch)]
    assert got == inline_rows(train, batch_size=4)
    assert "WARNING" not in server.log()
    assert server.status()["quarantined"] == {}


def test_a_folder_made_anew_under_its_old_name_is_read(server: Server, tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", 2 * N)
    with PrepClient(spec, OPS, fields="dict", batch_size=4, prefetch=8, runtime_dir=server.runtime_dir) as client:
        batches = iter(client)
        got = rows_of(next(batches))
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        # renameat2(RENAME_EXCHANGE): at no time are the files not there
        call(316, -100, os.fsencode(tmp_path / "copy"), -100, os.fsencode(tmp_path / "data"), 2)
        shutil.rmtree(tmp_path / "copy")
        got += [row for batch in batches for row in rows_of(batch)]
        assert got == inline_rows(spec, batch_size=4)
    same_rows(server, spec)


def test_a_link_redirected_since_its_listing_is_named(server: Server, tmp_path: Path, secret: Path) -> None:
    spec = photo_tree(tmp_path / "data", N)
    with PrepClient(
        spec, OPS, fields="dict", batch_size=4, prefetch=8, on_error="mask", runtime_dir=server.runtime_dir
    ) as client:
        batches = iter(client)
        next(batches)
        last = max(Path(spec.root).rglob("*.jpg"))
        last.unlink()
        last.symlink_to(secret)
        for _ in batches:
            pass
        for _ in client:
            pass
    assert re.search(rf"bad sample .*{last.name}: .*sandbox", server.log()), server.log()


AS_AN_INDEXER = """
import os, sys
from pathlib import Path
from prepserver.worker import indexer, sandbox
cache, other = map(Path, sys.argv[1:])
parts = sandbox.find_out()
sandbox.confine(parts, indexer.CALLS)
sandbox.Seal(parts).close(["/"], writable=[str(cache)])
(cache / "new").write_bytes(b"1")
os.utime(cache)
(cache / "new").rename(cache / "renamed")
(cache / "renamed").unlink()
(other / "there").read_bytes()
for attempt in (
    lambda: (other / "there").open("r+b"),
    lambda: (other / "new").open("wb"),
    lambda: (other / "there").unlink(),
    lambda: os.kill(os.getppid(), 0),
):
    try:
        attempt()
    except PermissionError:
        print("refused")
"""


def test_an_indexer_can_write_its_cache_and_nothing_else(tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    cache.mkdir()
    other.mkdir()
    (other / "there").write_bytes(b"1")
    assert python(AS_AN_INDEXER, str(cache), str(other)) == "refused\n" * 4


def test_a_list_that_leads_to_the_root_is_not_silent(server: Server, tmp_path: Path) -> None:
    photo_tree(tmp_path / "data", 2)
    listed = tmp_path / "list.csv"
    listed.write_text("data/cats/0000.jpg,0\n/no_such_file.jpg,0\n")
    with PrepClient(
        FileList(str(listed)), OPS, batch_size=2, on_error="mask", runtime_dir=server.runtime_dir
    ) as client:
        next(iter(client))
        assert server.stream()["reads_everywhere"]
        assert "workers can read all files" in cli("status", "--runtime-dir", str(server.runtime_dir)).stdout
    assert "workers may read all files" in server.log()
