"""The daemon's settings: defaults, then a TOML file, then the command line; checked in one place.

Every error names the setting, the value and the limit. It is long because each setting stands here in full: its
meaning, default, range, names in file and command line.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepserver.memory.cgroups import cpus
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.urls import canonical, is_url

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
SANDBOX_MODES = ("auto", "on", "off")
ENGINES = ("local", "ray")
MAX_FOLDERS = 32
MAX_PLUGINS = 64
_MAX_ROOT_BYTES = 1024  # 32 of them fit one message to a worker
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_WORKERS = 1024


class ConfigError(ValueError):
    """A setting is not valid; the text names it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one daemon.

    Attributes:
        workers: Worker processes; 0 means auto: usable CPUs less one at the start, then as many as the jobs need and
            the cores allow.
        memory_bytes: Budget for all rings together; 0 means auto (half of what is free at the start).
        runtime_dir: Where the sockets are; empty means the default place.
        cache_dir: Where listings of sources are kept; empty means ``index`` in the state directory.
        log_level: One of `LOG_LEVELS`.
        chunk_rows: Rows that a worker fills per task; more once a stream is under way. 16 rows
            are about 10 ms of work: few enough that several workers share a batch of 64, and enough that a task's
            message costs under 1 %.
        sample_timeout_s: The daemon kills a worker that takes longer to read and decode one sample, or to render it
            for one pipeline; another worker tries the sample once more.
        drain_s: Longest time that a stop leaves jobs before workers are killed.
        nice: Niceness of workers, so that training processes come first on a full machine.
        worker_memory_bytes: What one worker may allocate for itself; rings and caches do not count. 0 means auto (an
            equal share of the machine's memory, from 3 to 8 GiB; no limit with plug-ins, whose datasets may be large).
        sandbox: Whether workers give up the rights that decoding does not need, because they parse files from
            strangers: ``auto`` as far as the kernel supports it, ``on`` or the daemon does not start, ``off`` not.
        source_roots: The only folders that the daemon reads for users other than its own and root. Everybody who may
            connect can then see all files in them. URLs among them are the only ones that it reads for anybody; without
            any, workers have no network.
        memory_per_uid_bytes: Limit for all rings of one user together; 0 for no limit.
        jobs_per_uid: Most jobs of one user at a time, whatever their number of ranks; 0 for no limit.
        streams_per_uid: Most different streams that one user's jobs may read, because each is decoded separately; 0
            for no limit.
        plugins: Names of the owner's own code that is loaded; see `prepserver.plugins.load`.
        plugin_read: Folders that workers may read for plug-ins, beside the datasets of the other sources.
        cache_memory_bytes: Budget for all caches in memory together; 0 means auto (a quarter of what is free at the
            start).
        cache_disk_bytes: Budget for the caches in one folder; 0 means auto (half of what is free there).
        cache_folders: Folders below which jobs may have caches on disk. They belong to the daemon's user.
        socket_group: Group that may connect, a name or a number; empty for the daemon's own.
        socket_mode: Mode of the attach socket. One that systemd made keeps the mode of its unit.
        log_format: One of `LOG_FORMATS`.
        engine: What fills rows: ``local`` workers, or ``ray`` for remote ones beside them.
        ray_address: Where the Ray cluster is: ``auto`` for the one that this machine belongs to, or ``host:port``.
        remote_workers: Workers on the machines of that cluster.
    """

    workers: int = 0
    memory_bytes: int = 0
    runtime_dir: str = ""
    cache_dir: str = ""
    log_level: str = "info"
    chunk_rows: int = 16
    sample_timeout_s: float = 30.0
    drain_s: float = 5.0
    nice: int = 5
    worker_memory_bytes: int = 0
    sandbox: str = "auto"
    source_roots: tuple[str, ...] = ()
    memory_per_uid_bytes: int = 0
    jobs_per_uid: int = 0
    streams_per_uid: int = 0
    plugins: tuple[str, ...] = ()
    plugin_read: tuple[str, ...] = ()
    cache_memory_bytes: int = 0
    cache_disk_bytes: int = 0
    cache_folders: tuple[str, ...] = ()
    socket_group: str = ""
    socket_mode: int = 0o660
    log_format: str = "text"
    engine: str = "local"
    ray_address: str = "auto"
    remote_workers: int = 0

    @property
    def task_rows(self) -> int:
        """`chunk_rows`, but at least 64 with remote workers: a call of an actor costs 4 ms, whatever it makes."""
        return max(self.chunk_rows, 64 if self.engine == "ray" else 0)

    @property
    def url_roots(self) -> tuple[str, ...]:
        """The `source_roots` that are URLs."""
        return tuple(filter(is_url, self.source_roots))

    def __post_init__(self) -> None:
        """Checks ranges; raises `ConfigError`."""
        _within("workers", self.workers, 0, MAX_WORKERS)
        _within("memory", self.memory_bytes, 0, 1 << 50)
        _within("chunk_rows", self.chunk_rows, 1, 1024)
        _within("sample_timeout_s", self.sample_timeout_s, 0.1, 3600)
        _within("drain_s", self.drain_s, 0, 3600)
        _within("nice", self.nice, 0, 19)
        if self.worker_memory_bytes:
            _within("worker_memory", self.worker_memory_bytes, 64 << 20, 1 << 50)
        _within("limits.memory_per_uid", self.memory_per_uid_bytes, 0, 1 << 50)
        _within("limits.jobs_per_uid", self.jobs_per_uid, 0, 1 << 20)
        _within("limits.streams_per_uid", self.streams_per_uid, 0, 1 << 20)
        _check_folders("sources.roots", self.source_roots, or_urls=True)
        _check_folders("plugins.read", self.plugin_read)
        _check_folders("cache.folders", self.cache_folders)
        _within("cache.memory", self.cache_memory_bytes, 0, 1 << 50)
        _within("cache.disk", self.cache_disk_bytes, 0, 1 << 55)
        if len(self.plugins) > MAX_PLUGINS or not all(self.plugins):
            raise ConfigError(f"plugins.load = {list(self.plugins)}: at most {MAX_PLUGINS} names, none of them empty")
        if self.socket_mode & ~0o777 or self.socket_mode & 0o600 != 0o600:
            raise ConfigError(f"socket_mode = {self.socket_mode:#o} is not in [0o600, 0o777] with 0o600 set")
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(f"log_level = {self.log_level!r} is not one of {', '.join(LOG_LEVELS)}")
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"log_format = {self.log_format!r} is not one of {', '.join(LOG_FORMATS)}")
        _within("remote_workers", self.remote_workers, 0, MAX_WORKERS)
        if self.engine not in ENGINES:
            raise ConfigError(f"engine = {self.engine!r} is not one of {', '.join(ENGINES)}")
        if (self.engine == "ray") != bool(self.remote_workers):
            raise ConfigError(
                f"engine = {self.engine!r} with {self.remote_workers} remote workers: --engine ray and "
                "--remote-workers N belong together"
            )
        if not self.ray_address or "://" in self.ray_address:
            raise ConfigError(
                f'ray.address = {self.ray_address!r} is neither "auto" nor host:port. This machine must belong to the '
                "cluster: ray start --address=HEAD:6379 --num-cpus=0"
            )
        if self.sandbox not in SANDBOX_MODES:
            raise ConfigError(f"sandbox = {self.sandbox!r} is not one of {', '.join(SANDBOX_MODES)}")


def load_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Settings from `file` (TOML with the names below, all optional), overridden by `flags`.

    ``workers`` ("auto" or a number), ``memory`` and ``worker_memory`` ("auto", bytes, or with a unit such as "8G"),
    ``runtime_dir``, ``cache_dir``, ``log_level``, ``log_format``, ``chunk_rows``, ``sample_timeout_s``, ``drain_s``,
    ``nice``, ``sandbox``, ``engine``, ``socket_group``, ``socket_mode``; ``roots`` in the table ``[sources]``; ``load``
    and ``read`` in ``[plugins]``; ``memory``, ``disk`` and ``folders`` in ``[cache]``; ``memory_per_uid``,
    ``jobs_per_uid`` and ``streams_per_uid`` in ``[limits]``; ``address`` and ``workers`` in ``[ray]``. In `flags`,
    these have the names that `_OF_FLAGS` gives.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or not valid.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values |= {name: _parse(name, value, f"{file}: ") for name, value in _flat(_read(file), file).items()}
    flags = {_OF_FLAGS.get(name, name): value for name, value in flags.items() if value is not None}
    values |= {name: _parse(name, value, "") for name, value in flags.items()}
    return Settings(**{FIELDS.get(name, name): value for name, value in values.items()})


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as f:
            return tomllib.load(f)
    except OSError as e:
        raise ConfigError(f"--config {file}: {e.strerror or e}") from e
    except ValueError as e:  # TOMLDecodeError, or bytes that are no UTF-8
        raise ConfigError(f"--config {file} is not TOML: {e}") from e


_OF_FLAGS = {
    "roots": "sources.roots",
    "plugins": "plugins.load",
    "plugin_read": "plugins.read",
    "cache_memory": "cache.memory",
    "cache_folders": "cache.folders",
    "address": "ray.address",
    "remote_workers": "ray.workers",
}
_TABLES = {
    "sources": ("roots",),
    "plugins": ("load", "read"),
    "cache": ("memory", "disk", "folders"),
    "limits": ("memory_per_uid", "jobs_per_uid", "streams_per_uid"),
    "ray": ("address", "workers"),
}
FIELDS = {
    "memory": "memory_bytes",
    "worker_memory": "worker_memory_bytes",
    "sources.roots": "source_roots",
    "plugins.load": "plugins",
    "plugins.read": "plugin_read",
    "cache.memory": "cache_memory_bytes",
    "cache.disk": "cache_disk_bytes",
    "cache.folders": "cache_folders",
    "limits.memory_per_uid": "memory_per_uid_bytes",
    "limits.jobs_per_uid": "jobs_per_uid",
    "limits.streams_per_uid": "streams_per_uid",
    "ray.address": "ray_address",
    "ray.workers": "remote_workers",
}
"""Names in a file that differ from those in `Settings`."""


def _flat(read: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The settings without nesting: ``roots`` in ``[sources]`` becomes ``sources.roots``."""
    flat: dict[str, Any] = {}
    for name, value in read.items():
        if name not in _TABLES:
            flat[name] = value
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"{file}: {name} = {value!r} is a table: [{name}]")
        for inner in value:
            if inner not in _TABLES[name]:
                raise ConfigError(
                    f"{file}: unknown setting {inner!r} in [{name}]; known are {', '.join(_TABLES[name])}"
                )
        flat |= {f"{name}.{inner}": entry for inner, entry in value.items()}
    return flat


_LISTS = {
    "sources.roots": 'folders and URLs, such as ["/data", "s3://bucket"]',
    "plugins.load": 'names, such as ["my_project.data"]',
    "plugins.read": 'folders, such as ["/data"]',
    "cache.folders": 'folders, such as ["/var/cache/prepserver"]',
}
_KINDS: dict[str, type | tuple[type, ...]] = {
    "runtime_dir": str,
    "cache_dir": str,
    "log_level": str,
    "log_format": str,
    "chunk_rows": int,
    "sample_timeout_s": (int, float),
    "drain_s": (int, float),
    "nice": int,
    "sandbox": str,
    "engine": str,
    "ray.address": str,
    "ray.workers": int,
    "limits.jobs_per_uid": int,
    "limits.streams_per_uid": int,
    "socket_group": (str, int),
}


def _parse(name: str, value: Any, where: str) -> Any:
    if name == "workers":
        return parse_workers(value, where)
    if name in ("memory", "worker_memory", "cache.memory", "cache.disk"):
        return parse_bytes(value, f"{where}{name}")
    if name == "limits.memory_per_uid":
        if value == "auto":
            raise ConfigError(f"{where}{name} = 'auto': bytes with a unit, such as 8G, or 0 for no limit")
        return 0 if value == 0 and not isinstance(value, bool) else parse_bytes(value, f"{where}{name}")
    if name in _LISTS:
        return _parse_list(name, value, where)
    if name == "socket_mode":
        return _parse_mode(value, where)
    kind = _KINDS.get(name)
    if kind is None:
        known = ", ".join(
            ["workers", "memory", "worker_memory", *(k for k in _KINDS if "." not in k), "socket_mode", *_TABLES]
        )
        raise ConfigError(f"{where}unknown setting {name!r}; known are {known}")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{where}{name} = {value!r} is of the wrong type")
    return str(value) if name == "socket_group" else value


def _parse_list(name: str, value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where}{name} = {value!r} is not a list of {_LISTS[name]}")
    if name == "sources.roots":
        value = [_parse_url(item, f"{where}{name}") or item for item in value]
    if name != "plugins.load":
        value = [item if not item or is_url(item) else os.path.normpath(item) for item in value]
    return tuple(dict.fromkeys(value))


def _parse_url(value: str, name: str) -> str | None:
    try:
        return canonical(name, value)
    except SpecError as e:
        raise ConfigError(str(e)) from e


def _parse_mode(value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch("[0-7]{3,4}", value):
        return int(value, 8)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f'{where}socket_mode = {value!r} is not a mode, such as "0660"')
    return value


def _check_folders(name: str, folders: tuple[str, ...], *, or_urls: bool = False) -> None:
    if len(folders) > MAX_FOLDERS:
        raise ConfigError(f"{name}: {len(folders)} folders are more than {MAX_FOLDERS}")
    for folder in folders:
        if or_urls and is_url(folder):
            continue
        if not folder.startswith("/") or "\0" in folder or len(os.fsencode(folder)) > _MAX_ROOT_BYTES:
            raise ConfigError(f"{name}: {folder!r} is not an absolute path of at most {_MAX_ROOT_BYTES} bytes")


def parse_workers(value: int | str, where: str = "") -> int:
    """``auto`` as 0, else the number; raises `ConfigError` for anything else."""
    if value == "auto":
        return 0
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):  # isdigit() takes "²", which int() does not
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WORKERS:
        raise ConfigError(f"{where}workers = {value!r}: a number from 1 to {MAX_WORKERS}, or auto")
    return value


def parse_bytes(value: int | str, name: str) -> int:
    """``auto`` as 0, else bytes: ``1073741824``, ``1024M``, ``1G``, ``1GiB``; else raises `ConfigError`."""
    if value == "auto":
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
    nbytes = float(found[1]) * _UNITS[found[2].upper()] if found is not None else 0.0
    # anything below 1 would become 0, which means auto
    if not 1 <= nbytes < math.inf:
        raise ConfigError(f"{name} = {value!r}: auto, or bytes with a unit, such as 8G")
    return int(nbytes)


def format_bytes(nbytes: int) -> str:
    """`nbytes` for people, in MiB or GiB."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.1f} MiB"


def auto_workers() -> int:
    """Workers that ``workers = "auto"`` begins with: `auto_most_workers`, less one; at least one.

    That one CPU is for the daemon and the jobs' own Python.
    """
    return max(1, auto_most_workers() - 1)


def auto_most_workers() -> int:
    """The most workers that ``workers = "auto"`` ever has: CPUs of this process, by affinity and cgroup quota.

    ``os.cpu_count`` knows neither limit.
    """
    quota = cpus()
    usable = len(os.sched_getaffinity(0))
    return min(MAX_WORKERS, usable if quota is None else max(1, min(usable, math.ceil(quota))))


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} = {value} is not in [{low:g}, {high:g}]")


def user_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/prepserver``, else ``~/.cache/prepserver``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "prepserver"
