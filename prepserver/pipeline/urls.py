"""Places on the network as text: which there are, in one spelling, and which lie below which. Pure.

``s3://``, ``gs://`` and ``az://`` name a bucket (a container) and a key, as it is. ``https://`` and ``http://`` name a
host and a path, as a browser would send it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from prepserver.pipeline.errors import SpecError

SCHEMES = ("s3", "gs", "az", "https", "http")

_URL = re.compile(r"(s3|gs|az|https?)://(.*)", re.DOTALL | re.IGNORECASE)
_BEGINS = tuple(f"{scheme}://" for scheme in SCHEMES)
_BEGINS_BYTES = tuple(begin.encode() for begin in _BEGINS)
_AUTHORITY = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")
_PORTS = {"https": ":443", "http": ":80"}


def is_url(path: str | bytes) -> bool:
    """Say whether a path in its canonical spelling is on the network."""
    return path.startswith(_BEGINS_BYTES) if isinstance(path, bytes) else path.startswith(_BEGINS)


def canonical(field: str, value: str) -> str | None:
    """Return a URL in one spelling; None for a text that is no URL.

    Scheme and host are in lower case, a usual port and a last slash are left out. An error blames the parameter
    `field`.

    Raises:
        SpecError: It has a user, a password or a query, no bucket or host, or a path with ``..``.
    """
    if ":/" not in value:  # nearly every path of a table
        return None
    found = _URL.fullmatch(value)
    if found is None:
        if re.match(r"(s3|gs|az|https?):/[^/]", value):
            raise SpecError(field, value, "lost a slash in a path object: give a URL as a str")
        return None
    scheme = found[1].lower()
    authority, _, key = found[2].partition("/")
    web = scheme in _PORTS
    if "@" in authority or (web and ("?" in found[2] or "#" in found[2])):
        # The value may hold a password, so the error does not show it.
        raise SpecError(
            field, f"{scheme}://...", "must have no user, password, query or fragment: credentials come only from the "
            "daemon's environment",
        )  # fmt: skip
    if not _AUTHORITY.fullmatch(authority):
        raise SpecError(field, value, "must name a host after ://" if web else "must name a bucket after ://")
    if web:
        authority = authority.lower().removesuffix(_PORTS[scheme])
    parts = key.removesuffix("/").split("/") if key else []
    plain = map(unquote, parts) if web else iter(parts)
    if any(part in ("", ".", "..") or "\0" in part or "/" in part for part in plain):
        raise SpecError(field, value, "must have no empty part, no . and no .. in its path")
    return "/".join((f"{scheme}://{authority}", *parts))


def split(url: str) -> tuple[str, str]:
    """Return the store of a canonical URL, such as ``s3://bucket``, and the key in it, without escapes."""
    scheme, _, rest = url.partition("://")
    authority, _, key = rest.partition("/")
    return f"{scheme}://{authority}", unquote(key) if scheme in _PORTS else key


def lies_below(url: str, roots: tuple[str, ...]) -> bool:
    """Say whether a canonical URL is one of the roots, or lies below one."""
    return any(f"{url}/".startswith(f"{root}/") for root in roots)
