"""The base of sources: a digest, the columns of the samples, and the paths that the source names.

A spec names a dataset and opens nothing: the client builds it, it travels as a map of plain values, and the daemon
checks it again on arrival. `prepserver.source` reads it.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from prepserver.pipeline.declared import columns_to_wire
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import Columns, images
from prepserver.pipeline.spec import Spec, digest_of, paths_of
from prepserver.pipeline.urls import SCHEMES, canonical, is_url, split

MAX_WIRE_BYTES = 24 << 10  # limit on a source as JSON; its message to workers, of 64 KiB, holds other things, too

_USUAL_COLUMNS = 16

MAX_PATHS = 64  # limit on a list of paths; a spec travels in messages

_LOCATION_CHARS = 200


class PathLike(Protocol):
    """A path object, such as pathlib's."""

    def __fspath__(self) -> str: ...


class SourceSpec(Spec):
    """A dataset, as data. Its `paths` say where the dataset is, not what it holds."""

    wire_key = "source"
    needs_defaults = True  # a default that changes between two releases must not change a dataset
    # Neighbours are alike: batch them together, in other groups in each epoch.
    is_sorted: ClassVar[bool] = False
    # Columns that the user has declared; None where the source itself says what they are.
    declared: Columns | None = None

    @property
    def columns(self) -> Columns:
        """What each sample holds, by name: as declared, or an image, a mask if the spec asks for masks, and a label."""
        return self.declared or images(mask=bool(getattr(self, "masks", None)))

    @property
    def location(self) -> str:
        """Where the dataset is, to show to users; its class's name if it has no path."""
        named = paths_of(getattr(self, self.paths[0])) if self.paths else [type(self).__name__]
        return f"{named[0]}{f' and {len(named) - 1} more' * (len(named) > 1)}"

    def named_paths(self) -> list[tuple[str, str]]:
        """Return (parameter, path) of each path that the spec names."""
        return [(name, path) for name in self.paths for path in paths_of(getattr(self, name))]

    @property
    def stores(self) -> tuple[str, ...]:
        """Buckets and hosts of its paths that are URLs, such as ``s3://bucket``."""
        named = (path for part in self.parts() for _, path in part.named_paths())
        return tuple(dict.fromkeys(split(path)[0] for path in named if is_url(path)))

    def to_wire(self) -> dict[str, Any]:
        """As `Spec.to_wire`, without what is None; declared columns are a list, ``columns``."""
        wire = {name: value for name, value in super().to_wire().items() if value is not None}
        if self.declared is not None:
            del wire["declared"]
            wire["columns"] = columns_to_wire(self.declared)
        return wire

    @property
    def pattern(self) -> tuple[int, ...]:
        """Which of several sources each sample of a repeating period is from, see `Mix`; empty for one source."""
        return ()

    @property
    def arrangement(self) -> tuple[tuple[int, ...], bool]:
        """Its `pattern`, and whether it `is_sorted`: what an order must know."""
        return self.pattern, self.is_sorted

    def parts(self) -> Iterator[SourceSpec]:
        """Yield this source and, at any depth, those that it is composed of."""
        yield self

    def without_paths(self) -> list[tuple[str, Any]]:
        """Return the wire form without paths, sorted: equal for copies of a dataset in different places."""
        return sorted((name, value) for name, value in self.to_wire().items() if name not in self.paths)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the wire form: equal for equal specs, in any process."""
        return digest_of(self.to_wire())


def check_bytes(field: str, spec: SourceSpec) -> None:
    """Raise `SpecError` for a source above `MAX_WIRE_BYTES`, or above twice that if it is one source of few columns."""
    # 0.2 had no limit on those, and a list of long paths is long.
    is_usual = len(spec.columns) <= _USUAL_COLUMNS and len(list(spec.parts())) == 1
    most = MAX_WIRE_BYTES * (2 if is_usual else 1)
    if (nbytes := _nbytes(spec.to_wire())) > most:
        remedy = "use fewer sources or columns, or shorter names and paths"
        raise SpecError(field, type(spec).__name__, f"takes {nbytes} bytes in a message, more than {most}: {remedy}")


def _nbytes(wire: object) -> int:
    text = json.dumps(wire, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode(errors="surrogatepass"))


def short(location: str) -> str:
    """Return a location to show to users, cut if it is long."""
    return location if len(location) <= _LOCATION_CHARS else location[: _LOCATION_CHARS - 3] + "..."


def absolute_all(field: str, value: object) -> tuple[str, ...]:
    """Return a path, or each of a list, as `absolute` does; at most `MAX_PATHS`.

    Raises:
        SpecError: No path, too many, or some of this machine and some of the network.
    """
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not 0 < len(given) <= MAX_PATHS:
        raise SpecError(field, value, f"must be 1 to {MAX_PATHS} paths: name many files by a pattern, /data/*.csv")
    return in_one_place(field, tuple(absolute(field, path) for path in given))


def in_one_place(field: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return paths that are all on this machine, or all on the network; raises `SpecError` if they are not."""
    if len(set(map(is_url, paths))) > 1:
        raise SpecError(field, list(paths), "must be all files or all URLs: Concat takes a source of each")
    return paths


def absolute(field: str, value: object) -> str:
    """Return a path as an absolute path in one spelling: `/data/`, `/data` and `data` seen from `/` are one source.

    ``..`` stays in a path that was absolute: its meaning depends on links that only the server sees. A URL is returned
    in one spelling, too: see `prepserver.pipeline.urls`.

    Raises:
        SpecError: `value` is no path, or one that cannot travel in a message.
    """
    if hasattr(value, "__fspath__"):
        value = value.__fspath__()
    if not isinstance(value, str) or not value:
        raise SpecError(field, value, "must be a path")
    if "\0" in value:
        raise SpecError(field, value, "must not hold a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Names below the root may be any bytes; the root itself travels in a message as text.
        raise SpecError(field, value, "must be valid UTF-8; give the folder a UTF-8 name or a link") from None
    if (url := canonical(field, value)) is not None:
        return url
    if found := re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", value):
        reason = (
            f"has the scheme {found[1]!r}: the daemon reads paths and {', '.join(f'{each}://' for each in SCHEMES)}"
        )
        raise SpecError(field, value, f"{reason}. A file of this machine has no scheme; nothing is fetched from a hub")
    if not value.startswith("/"):
        value = posixpath.abspath(posixpath.expanduser(value))  # the only look at the client's machine
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))
