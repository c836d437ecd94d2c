"""``prepserver start`` holds its settings against the machine."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from prepserver.cli import exits, main
from prepserver.cli.doubts import doubts
from prepserver.config import ConfigError, Settings
from prepserver.memory.budget import machine_bytes


def test_settings_that_the_machine_can_follow_raise_no_doubt(tmp_path: Path) -> None:
    assert doubts(Settings(memory_bytes=64 << 20, source_roots=(str(tmp_path),), cache_dir=str(tmp_path / "a/b"))) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", "900T"], "is too much: "),
        (["--memory", "8"], "--memory = '8': must be from 16K"),
        (["--root", "FILE"], "is not a folder"),
        (["--cache-dir", "FILE"], "is not a folder"),
        (["--cache-dir", "FILE/below"], "is not a folder"),
        (["--engine", "ray"], 'set both engine = "ray" (--engine) and'),
        (["--remote-workers", "2"], "workers under [ray] (--remote-workers), or neither"),
        (["--engine", "ray", "--remote-workers", "2", "--address", "ray://head:10001"], "must belong to the cluster"),
        (["--engine", "ray", "--remote-workers", "2"], "needs the package ray: pip install 'prepserver[ray]'"),
    ],
)
def test_what_cannot_work_here_is_refused_and_nothing_is_made(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    file = tmp_path / "file"
    file.write_text("")
    arguments = [argument.replace("FILE", str(file)) for argument in arguments]
    assert main(["start", "--runtime-dir", str(tmp_path / "run"), "--workers", "1", *arguments]) == exits.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_memory_refusal_names_what_the_machine_has() -> None:
    total, limit = machine_bytes()
    with pytest.raises(ConfigError) as refused:
        doubts(Settings(memory_bytes=total + 1))
    assert str(refused.value).count(f"{total >> 20} MiB") == 1
    assert limit in str(refused.value)
    assert "--memory" in str(refused.value)


def test_memory_for_less_than_two_usual_batches_is_doubted() -> None:
    (said,) = doubts(Settings(memory_bytes=1 << 20))
    assert "two batches" in said
    assert "--memory" in said


def test_a_default_cache_that_cannot_be_made_is_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    (said,) = doubts(Settings(memory_bytes=64 << 20))
    assert said.startswith(f"{tmp_path}/file is not a folder")
    assert "Set cache_dir (--cache-dir)" in said


def test_a_missing_folder_for_caches_or_plugins_is_named(tmp_path: Path) -> None:
    none = (str(tmp_path), str(tmp_path / "none"))
    cache, plugin = doubts(Settings(memory_bytes=64 << 20, cache_folders=none, plugin_read=none))
    assert f"cannot see cache folder {tmp_path}/none: " in cache
    assert f"cannot see plug-in folder {tmp_path}/none: " in plugin


def test_a_limit_on_the_size_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (20 << 10, 20 << 10))
    (said,) = doubts(Settings(memory_bytes=64 << 20))
    assert said.startswith("files may have at most 20480 bytes: ")
    assert "LimitFSIZE=" in said


def test_a_file_is_no_folder_for_caches(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (said,) = doubts(Settings(memory_bytes=64 << 20, cache_folders=(f"{tmp_path}/file",)))
    assert said == f"cache folder {tmp_path}/file is not a folder: no job can have a cache there"


def test_memory_that_a_running_daemon_holds_is_there_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepserver.cli.doubts.machine_free_bytes", lambda: (50 << 20, ""))
    settings = Settings(memory_bytes=64 << 20)
    (said,) = doubts(settings)
    assert "only 50.0 MiB is free now" in said
    assert not doubts(settings, held_bytes=14 << 20)


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    (said,) = doubts(Settings(memory_bytes=64 << 20, source_roots=(str(tmp_path), str(tmp_path / "none"))))
    assert f"cannot see root {tmp_path}/none: " in said
