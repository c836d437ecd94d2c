"""Settings: defaults, file, flags, in this order; whatever is wrong is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver import config
from prepserver.config import (
    MAX_WORKERS,
    ConfigError,
    Settings,
    auto_workers,
    load_settings,
    parse_bytes,
    parse_workers,
    user_cache_dir,
)


def toml(folder: Path, text: str | bytes) -> Path:
    path = folder / "prepserver.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_file_and_flags_the_defaults_hold() -> None:
    assert load_settings(None, {"workers": None, "memory_bytes": None}) == Settings()


def test_the_file_overrides_defaults_and_flags_override_the_file(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        'workers = 3\nmemory = "2G"\nlog_level = "debug"\nruntime_dir = "/r"\ncache_dir = "/c"\nchunk_rows = 8\n'
        "sample_timeout_s = 5\ndrain_s = 0.5\nnice = 0\n",
    )
    assert load_settings(file, {}) == Settings(
        workers=3, memory_bytes=2 << 30, runtime_dir="/r", cache_dir="/c", log_level="debug", chunk_rows=8,
        sample_timeout_s=5, drain_s=0.5, nice=0,
    )  # fmt: skip
    over = load_settings(file, {"workers": "auto", "memory_bytes": "1M", "log_level": "error", "runtime_dir": None})
    assert (over.workers, over.memory_bytes, over.log_level, over.runtime_dir) == (0, 1 << 20, "error", "/r")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers = 0", "workers = 0"),
        ("workers = true", "workers = True"),
        ("workers = 1025", "workers = 1025"),
        ("workers = [2]", r"workers = \[2\]"),
        ('memory = "lots"', "memory = 'lots'"),
        ("memory = 0", "memory = 0"),
        ("memory = -5", "memory = -5"),
        ("memory = 16", "memory = 16: must be from 16K to 1024T. Give it with its unit, such as 8G"),
        ('worker_memory = "1M"', "worker_memory = '1M': must be from 64M to 1024T"),
        ("[cache]\nmemory = 2", "cache.memory = 2: must be from 16K"),
        ("[cache]\ndisk = 500", "cache.disk = 500: must be from 16K to 32768T"),
        ("[limits]\nmemory_per_uid = 8", "limits.memory_per_uid = 8: must be from 16K"),
        ("memory = 0.5", "memory = 0.5"),
        ("memory = true", "memory = True"),
        ('memory = "9999999T"', "memory = "),
        ("runtime_dir = 5", "runtime_dir = 5 must be a string"),
        ('sandbox = "maybe"', "sandbox = 'maybe': must be 'auto' or 'on' or 'off'"),
        ('log_level = "loud"', "log_level = 'loud': must be 'debug' or 'info' or 'warning' or 'error'"),
        ("chunk_rows = 0", r"chunk_rows = 0: must lie between 1 and 1024"),
        ("chunk_rows = 1.5", "chunk_rows = 1.5"),
        ("sample_timeout_s = nan", "sample_timeout_s = nan"),
        ("sample_timeout_s = inf", "sample_timeout_s = inf"),
        ("sample_timeout_s = 0", "sample_timeout_s = 0"),
        ("drain_s = -1", "drain_s = -1"),
        ('drain_s = "5"', "drain_s = '5': must be a number"),
        ("nice = 20", "nice = 20"),
        ("nice = -1", "nice = -1"),
        ("nice = true", "nice = True"),
        ("worker = 3", "unknown setting 'worker'; known are workers, memory, worker_memory, runtime_dir"),
        ("memory_bytes = 3", "unknown setting 'memory_bytes'"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_its_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(toml(tmp_path, text), {})


@pytest.mark.parametrize("text", ["workers = ", b"\xff\xfe\x00", 'log_level = "a"\nlog_level = "b"'])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str | bytes) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{file} is not TOML"):
        load_settings(file, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.toml: No such file"):
        load_settings(tmp_path / "missing.toml", {})


def test_an_error_names_the_file_only_if_it_comes_from_one(tmp_path: Path) -> None:
    file = toml(tmp_path, "workers = -1")
    with pytest.raises(ConfigError, match=str(file)):
        load_settings(file, {})
    with pytest.raises(ConfigError, match=r"^--workers = '-1'"):
        load_settings(None, {"workers": "-1"})


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("auto", 0), (1, 1), ("1", 1), ("1024M", 1 << 30), ("1G", 1 << 30), ("1GiB", 1 << 30), ("1GB", 1 << 30),
        ("1.5g", 3 << 29), (" 2 k ", 2048), ("8T", 8 << 40), ("100B", 100), ("0.5K", 512),
    ],
)  # fmt: skip
def test_sizes_are_read(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text, "memory") == nbytes


@pytest.mark.parametrize(
    "text", ["", "G", "-1G", "0", "0.1", "1P", "1 G B", "1,5G", "nan", "inf", "9" * 400, "1e9", None]
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match=r"memory = .*bytes with a unit, such as 8G, or auto"):
        parse_bytes(text, "memory")


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.none())
def test_any_value_is_a_size_or_a_config_error(value: Any) -> None:
    try:
        nbytes = parse_bytes(value, "memory")
    except ConfigError as e:
        said = str(e)
        assert said.startswith("memory = ")
    else:
        assert type(nbytes) is int
        assert nbytes > 0 or value == "auto"


@given(st.text(max_size=12) | st.integers() | st.floats() | st.booleans() | st.none())
def test_any_value_is_a_number_of_workers_or_a_config_error(value: Any) -> None:
    try:
        workers = parse_workers(value)
    except ConfigError as e:
        said = str(e)
        assert said.startswith("workers = ")
    else:
        assert 1 <= workers <= MAX_WORKERS or value == "auto"


@pytest.mark.parametrize(("text", "workers"), [("auto", 0), ("7", 7), (7, 7), (str(MAX_WORKERS), MAX_WORKERS)])
def test_workers_are_read(text: int | str, workers: int) -> None:
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["²", "9" * 5000, "0", "1025", "two", "", True, 1.0])
def test_what_is_no_number_of_workers_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match=f"a number from 1 to {MAX_WORKERS}, or auto"):
        parse_workers(text)


def test_auto_leaves_a_cpu_and_gives_at_least_one_worker() -> None:
    assert 1 <= auto_workers() <= max(1, len(os.sched_getaffinity(0)) - 1)


@pytest.mark.parametrize(("quota", "workers"), [(None, 15), (4.0, 3), (2.5, 2), (0.5, 1), (64.0, 15)])
def test_auto_keeps_within_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    monkeypatch.setattr(config, "cpus", lambda: quota)
    assert auto_workers() == workers


def test_roots_and_limits_are_read_from_their_tables(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        'socket_group = 44\nsocket_mode = "0666"\n[sources]\nroots = ["/data/", "/data", "/b/../c"]\n'
        '[limits]\nmemory_per_uid = "2G"\njobs_per_uid = 3\nstreams_per_uid = 2\n',
    )
    settings = load_settings(file, {"source_roots": None})
    assert settings.source_roots == ("/data", "/c")
    assert (settings.memory_per_uid_bytes, settings.jobs_per_uid, settings.streams_per_uid) == (2 << 30, 3, 2)
    assert (settings.socket_group, settings.socket_mode) == ("44", 0o666)
    assert load_settings(file, {"source_roots": ["/other"]}).source_roots == ("/other",)
    assert load_settings(toml(tmp_path, "[limits]\nmemory_per_uid = 0\n"), {}).memory_per_uid_bytes == 0
    assert load_settings(toml(tmp_path, "socket_mode = 0o600"), {}).socket_mode == 0o600


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roots = ['/d']", "unknown setting 'roots'.*sources"),
        ("sources = 3", r"sources = 3: must be a table, \[sources\]"),
        ("[sources]\nroot = ['/d']", r"unknown setting 'root' in \[sources\]; known are roots"),
        ("[sources]\nroots = '/d'", "sources.roots = '/d' is not a list of folders"),
        ("[sources]\nroots = [1]", "sources.roots = "),
        ("[sources]\nroots = ['data']", "sources.roots: 'data' is not an absolute path"),
        ("[sources]\nroots = ['']", "sources.roots: '' is not an absolute path"),
        ("[sources]\nroots = ['/" + "x" * 1024 + "']", "of at most 1024 bytes"),
        (
            "[sources]\nroots = [" + ", ".join(f"'/{n}'" for n in range(33)) + "]",
            "33 folders, but at most 32 are allowed",
        ),
        ("[limits]\nmemory_per_uid = 'auto'", "limits.memory_per_uid = 'auto': .* 0 for no limit"),
        ("[limits]\nmemory_per_uid = '4X'", "limits.memory_per_uid = '4X': must be bytes with a unit"),
        ("[limits]\nmemory_per_uid = '2000T'", "limits.memory_per_uid = "),
        ("[limits]\nmemory_per_uid = true", "limits.memory_per_uid = True"),
        ("[limits]\njobs_per_uid = -1", "limits.jobs_per_uid = -1: must lie between 0"),
        ("[limits]\njobs_per_uid = '2'", "limits.jobs_per_uid = '2': must be an integer"),
        ("[limits]\njobs = 2", r"unknown setting 'jobs' in \[limits\]"),
        ("socket_mode = '999'", "socket_mode = '999' is not a mode"),
        ("socket_mode = 0o60", "socket_mode = 48 is 0o60: must be from 0o600"),
        ("socket_mode = 0o10660", "is 0o10660: must be from 0o600"),
        ("socket_mode = 660", 'socket_mode = 660 is 0o1224: .* Write it in quotes, such as "0660"'),
        ("socket_mode = true", "socket_mode = True is not a mode"),
        ("socket_group = 1.5", "socket_group = 1.5 must be a string"),
    ],
)
def test_an_access_setting_that_cannot_be_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(toml(tmp_path, text), {})


def test_roots_are_folders_and_urls() -> None:
    settings = load_settings(None, {"source_roots": ["/data/", "S3://bucket/train/", "https://host:443/x"]})
    assert settings.source_roots == ("/data", "s3://bucket/train", "https://host/x")
    assert settings.url_roots == ("s3://bucket/train", "https://host/x")
    for bad in ("s3://user@bucket", "s3://b/../c", "s3:/bucket", "ftp://host", "/\udcff"):
        with pytest.raises(ConfigError, match="--root"):
            load_settings(None, {"source_roots": [bad]})


def test_without_a_home_the_cache_is_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache_dir() == tmp_path / ".cache" / "prepserver"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / f"prepserver-{os.getuid()}-cache"
    monkeypatch.setenv("HOME", "/dev/null/nobody")
    assert user_cache_dir() == elsewhere
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])  # as for a user that a container does not know
    assert user_cache_dir() == elsewhere
    assert elsewhere.stat().st_mode & 0o777 == 0o700
    elsewhere.rmdir()
    elsewhere.symlink_to(tmp_path)  # somebody else's
    assert user_cache_dir() == Path("/~/.cache/prepserver")
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    assert user_cache_dir() == Path("/~/.cache/prepserver")
