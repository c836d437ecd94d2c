"""The daemon's settings: defaults, then a TOML file, then the command line.

`Settings` is the only table of them: each field has its default, its name in a file, its flag, and the function that
reads a value. Every error names the setting, the value and the limit. The module is long because all of these
functions are here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prepserver.memory.cgroups import cpus
from prepserver.pipeline.checks import choice, integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.urls import canonical, is_url
from prepserver.protocol.work import MAX_PLUGINS

MAX_WORKERS = 1024
_MAX_FOLDERS = 32
_MAX_ROOT_BYTES = 1024  # `_MAX_FOLDERS` of them fit one message to a worker
_LEAST_BYTES = 16 << 10  # of any size: no ring is smaller than 12 KiB, so a smaller number lacks its unit
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

Read = Callable[[Any, str], Any]
"""Checks a value from the file or the command line and returns it as `Settings` holds it.

The second argument is the setting's name, for errors. Raises `ConfigError`, or a `SpecError`.
"""


class ConfigError(ValueError):
    """A setting is not valid; the text names it."""


# -- how values are read --------------------------------------------------------------------------------


def parse_workers(value: int | str, name: str = "workers") -> int:
    """``auto`` as 0, else the number; raises `ConfigError` for anything else."""
    if value == "auto":
        return 0
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):  # isdigit() takes "²", which int() does not
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_WORKERS:
        raise ConfigError(f"{name} = {value!r}: must be a number from 1 to {MAX_WORKERS}, or auto")
    return value


def parse_bytes(value: int | str, name: str, zero: str = "auto") -> int:
    """``auto`` as 0, else bytes: ``1073741824``, ``1024M``, ``1G``, ``1GiB``; else raises `ConfigError`.

    Errors say what else may be given, `zero`.
    """
    if value == "auto":
        return 0
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
    nbytes = float(found[1]) * _UNITS[found[2].upper()] if found is not None else 0.0
    # A value below 1 would become 0, which means auto.
    if not 1 <= nbytes < math.inf:
        raise ConfigError(f"{name} = {value!r}: must be bytes with a unit, such as 8G, or {zero}")
    return int(nbytes)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} = {value!r} must be a string")
    return value


def _integer(low: int, high: int) -> Read:
    return lambda value, name: integer(name, value, low, high)


def _seconds(low: float) -> Read:
    return lambda value, name: number(name, value, low, 3600.0)


def _bytes(least: int = _LEAST_BYTES, most: int = 1 << 50, zero: str = "auto") -> Read:
    """A size in bytes, or 0 for auto."""

    def read(value: Any, name: str) -> int:
        nbytes = parse_bytes(value, name, zero)
        if nbytes and not least <= nbytes <= most:
            raise ConfigError(
                f"{name} = {value!r}: must be from {_size(least)} to {_size(most)}. Give it with its unit, such as 8G"
            )
        return nbytes

    return read


def _size(nbytes: int) -> str:
    """A whole number of some unit as users write it, such as 64M."""
    unit = next(unit for unit in "TGMK" if nbytes % _UNITS[unit] == 0)
    return f"{nbytes // _UNITS[unit]}{unit}"


def _bytes_or_no_limit(value: Any, name: str) -> int:
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    zero = "0 for no limit"
    if value == "auto":
        raise ConfigError(f"{name} = {value!r}: must be bytes with a unit, such as 8G, or {zero}")
    return int(_bytes(zero=zero)(value, name))


def _one_of(*known: str) -> Read:
    return lambda value, name: choice(name, value, known)


def _texts(value: Any, name: str, such_as: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{name} = {value!r} is not a list of {such_as}")
    return value


def _plugins(value: Any, name: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(_texts(value, name, 'names, such as ["my_project.data"]')))
    if len(found) > MAX_PLUGINS or not all(found):
        raise ConfigError(f"{name} = {list(found)}: at most {MAX_PLUGINS} names, none of them empty")
    return found


def _folders(*, or_urls: bool = False) -> Read:
    such_as = 'folders and URLs, such as ["/data", "s3://bucket"]' if or_urls else 'folders, such as ["/data"]'

    def read_one(item: str, name: str) -> str:
        if or_urls and (url := canonical(name, item)) is not None:
            return url
        folder = os.path.normpath(item)
        if not folder.startswith("/") or "\0" in folder or len(os.fsencode(folder)) > _MAX_ROOT_BYTES:
            raise ConfigError(f"{name}: {item!r} is not an absolute path of at most {_MAX_ROOT_BYTES} bytes")
        try:
            folder.encode()  # messages carry it as UTF-8
        except UnicodeEncodeError:
            raise ConfigError(f"{name}: {item!r} is not valid UTF-8: rename the folder, or name a link to it") from None
        return folder

    def read(value: Any, name: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(read_one(item, name) for item in _texts(value, name, such_as)))
        if len(found) > _MAX_FOLDERS:
            raise ConfigError(f"{name}: {len(found)} folders, but at most {_MAX_FOLDERS} are allowed")
        return found

    return read


def _mode(value: Any, name: str) -> int:
    if isinstance(value, str) and re.fullmatch("[0-7]{3,4}", value):
        value = int(value, 8)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f'{name} = {value!r} is not a mode, such as "0660"')
    if value & ~0o777 or value & 0o600 != 0o600:
        raise ConfigError(
            f"{name} = {value} is {value:#o}: must be from 0o600 to 0o777, with 0o600 set. Write it in quotes, such as "
            '"0660"'
        )
    return value


def _group(value: Any, name: str) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value, name)


def _cluster(value: Any, name: str) -> str:
    address = _text(value, name)
    if not address or "://" in address:
        raise ConfigError(
            f'{name} = {address!r} is neither "auto" nor host:port. This machine must belong to the cluster: '
            "ray start --address=HEAD:6379 --num-cpus=0"
        )
    return address


def _setting(default: Any, read: Read, name: str = "", *, flag: str = "", live: bool = False) -> Any:
    """A field of `Settings`; `name` and `flag` are those in a file and on the command line, if they differ.

    A running daemon can change a `live` one.
    """
    return dataclasses.field(default=default, metadata={"read": read, "name": name, "flag": flag, "live": live})


# -- the settings ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one daemon, as docs/configuration.md describes them.

    0 means auto or no limit, an empty text means the default.
    """

    workers: int = _setting(0, parse_workers, live=True)
    memory_bytes: int = _setting(0, _bytes(), "memory", live=True)
    worker_memory_bytes: int = _setting(0, _bytes(64 << 20), "worker_memory")
    runtime_dir: str = _setting("", _text)
    cache_dir: str = _setting("", _text)
    log_level: str = _setting("info", _one_of("debug", "info", "warning", "error"), live=True)
    log_format: str = _setting("text", _one_of("text", "json"))
    # 16 rows are about 10 ms of work: few enough that several workers share a batch of 64, and enough that the messages
    # of a task cost under 1 %.
    chunk_rows: int = _setting(16, _integer(1, 1024))
    sample_timeout_s: float = _setting(30.0, _seconds(0.1))
    drain_s: float = _setting(5.0, _seconds(0.0), live=True)
    nice: int = _setting(5, _integer(0, 19))
    sandbox: str = _setting("auto", _one_of("auto", "on", "off"))
    engine: str = _setting("local", _one_of("local", "ray"))
    socket_group: str = _setting("", _group)
    socket_mode: int = _setting(0o660, _mode)
    source_roots: tuple[str, ...] = _setting((), _folders(or_urls=True), "sources.roots", flag="--root", live=True)
    plugins: tuple[str, ...] = _setting((), _plugins, "plugins.load", flag="--plugin")
    plugin_read: tuple[str, ...] = _setting((), _folders(), "plugins.read", flag="--plugin-read")
    cache_memory_bytes: int = _setting(0, _bytes(), "cache.memory", flag="--cache-memory")
    cache_disk_bytes: int = _setting(0, _bytes(most=1 << 55), "cache.disk", live=True)
    cache_folders: tuple[str, ...] = _setting((), _folders(), "cache.folders", flag="--cache-folder", live=True)
    memory_per_uid_bytes: int = _setting(0, _bytes_or_no_limit, "limits.memory_per_uid", live=True)
    jobs_per_uid: int = _setting(0, _integer(0, 1 << 20), "limits.jobs_per_uid", live=True)
    streams_per_uid: int = _setting(0, _integer(0, 1 << 20), "limits.streams_per_uid", live=True)
    ray_address: str = _setting("auto", _cluster, "ray.address", flag="--address")
    remote_workers: int = _setting(0, _integer(0, MAX_WORKERS), "ray.workers", flag="--remote-workers")

    @property
    def url_roots(self) -> tuple[str, ...]:
        """The `source_roots` that are URLs."""
        return tuple(filter(is_url, self.source_roots))

    def __post_init__(self) -> None:
        """Raises `ConfigError` for settings that contradict each other."""
        if (self.engine == "ray") != bool(self.remote_workers):
            raise ConfigError(
                f'engine = {self.engine!r} with {self.remote_workers} remote workers: set both engine = "ray" '
                "(--engine) and workers under [ray] (--remote-workers), or neither"
            )


FIELDS = {field.metadata["name"] or field.name: field for field in dataclasses.fields(Settings)}
"""The fields of `Settings` by their names in a file."""


def load_settings(file: Path | None, flags: Mapping[str, Any]) -> Settings:
    """Settings from a TOML file with the names of `FIELDS`, all optional, overridden by flags.

    `flags` has values by the names of the fields of `Settings`; other names and None are ignored.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown or not valid.
    """
    found: dict[str, Any] = {}
    for name, value in _in(file).items() if file is not None else ():
        if name not in FIELDS:
            raise ConfigError(f"{file}: {_unknown(name)}")
        found[FIELDS[name].name] = _read(FIELDS[name], value, f"{file}: {name}")
    for name, field in FIELDS.items():
        if (value := flags.get(field.name)) is not None:
            found[field.name] = _read(field, value, field.metadata["flag"] or f"--{name.replace('_', '-')}")
    return Settings(**found)


def _read(field: dataclasses.Field[Any], value: Any, name: str) -> Any:
    try:
        return field.metadata["read"](value, name)
    except SpecError as e:
        raise ConfigError(str(e)) from e


def _in(file: Path) -> dict[str, Any]:
    """The values in a file, by the names of `FIELDS`."""
    try:
        with file.open("rb") as f:
            read = tomllib.load(f)
    except OSError as e:
        raise ConfigError(f"--config {file}: {e.strerror or e}") from e
    except ValueError as e:  # TOMLDecodeError, or bytes that are not UTF-8
        raise ConfigError(f"--config {file} is not TOML: {e}") from e
    found: dict[str, Any] = {}
    for name, value in read.items():
        if name not in {known.partition(".")[0] for known in FIELDS if "." in known}:
            found[name] = value
        elif isinstance(value, dict):
            found |= {f"{name}.{inner}": entry for inner, entry in value.items()}
        else:
            raise ConfigError(f"{file}: {name} = {value!r}: must be a table, [{name}]")
    return found


def _unknown(name: str) -> str:
    table, _, inner = name.rpartition(".")
    if table:
        known = [each.removeprefix(f"{table}.") for each in FIELDS if each.startswith(f"{table}.")]
        return f"unknown setting {inner!r} in [{table}]; known are {', '.join(known)}"
    return f"unknown setting {name!r}; known are {', '.join(dict.fromkeys(each.partition('.')[0] for each in FIELDS))}"


LIVE = [name for name, field in FIELDS.items() if field.metadata["live"]]
"""Names in a file of the settings that a running daemon can change. They apply to new jobs and rings; running workers
keep their log level."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of reading settings again."""

    settings: Settings
    now: tuple[str, ...]  # names in a file of the settings that have changed
    at_restart: tuple[str, ...]  # names in a file of the settings that change only at a restart


def reload(old: Settings, read: Settings) -> Reloaded:
    """Applies to the `old` settings those changes in `read` that a running daemon can make."""
    differing = [name for name, f in FIELDS.items() if getattr(old, f.name) != getattr(read, f.name)]
    now = tuple(name for name in differing if name in LIVE)
    settings = dataclasses.replace(old, **{FIELDS[name].name: getattr(read, FIELDS[name].name) for name in now})
    later = tuple(name for name in differing if name not in LIVE)
    if read.url_roots != old.url_roots:
        # Workers got these, and access to the network or none, when their zygote started.
        folders = (root for root in read.source_roots if root not in read.url_roots)
        settings = dataclasses.replace(settings, source_roots=(*folders, *old.url_roots))
        later = (*later, "sources.roots (its URLs)")
        now = tuple(name for name in now if getattr(settings, FIELDS[name].name) != getattr(old, FIELDS[name].name))
    return Reloaded(settings, now, later)


def format_bytes(nbytes: int) -> str:
    """`nbytes` as text, in KiB, MiB or GiB."""
    if 0 < nbytes < 1 << 20:
        return f"{nbytes / 2**10:.1f} KiB"
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.1f} MiB"


def auto_workers() -> int:
    """Workers that ``workers = "auto"`` starts with: one CPU is left to the daemon and the jobs' Python."""
    return max(1, auto_most_workers() - 1)


def auto_most_workers() -> int:
    """The most workers that ``workers = "auto"`` ever has."""
    return min(MAX_WORKERS, max(1, math.ceil(usable_cores())))


def usable_cores() -> float:
    """Cores that this process may use, by its affinity and its cgroup's limit on CPU time."""
    return min(float(len(os.sched_getaffinity(0))), cpus() or math.inf)


def user_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/prepserver``, else ``~/.cache/prepserver``.

    If it cannot be made, as for a user of a container who has no home, a folder in the temporary directory.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "prepserver"
    home = os.path.expanduser("~")  # which stays as it is for a user without a home
    wanted = Path("/", home, ".cache", "prepserver")
    there = next(each for each in (wanted, *wanted.parents) if os.path.exists(each))
    if home != "~" and os.access(there, os.W_OK | os.X_OK):
        return wanted
    try:
        folder = Path(tempfile.gettempdir()) / f"prepserver-{os.getuid()}-cache"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        info = folder.lstat()  # anyone may make a folder there, and then replace what is in it
    except OSError:
        return wanted  # the error of whoever writes to it says what to do
    return folder if stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() else wanted
