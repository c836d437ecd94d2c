"""The code and the libraries of this process, on which the bytes of a row depend besides its spec.

Rows of two builds must not meet in one stream, so an actor whose build differs from the daemon's makes no rows.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import prepserver

_LIBRARIES = ("numpy", "torch", "simplejpeg", "pillow", "msgpack")
_OPTIONAL = ("pyarrow", "tokenizers", "tiktoken", "sentencepiece")


def build() -> dict[str, str]:
    """The digest of this package, and the versions of Python and of the libraries that make rows.

    Compiled kernels do not count: a kernel gives the same bytes as the code that replaces it, or is not used.
    """
    root = Path(prepserver.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    found = {"prepserver": digest.hexdigest()[:16], "python": "{}.{}".format(*sys.version_info)}
    return found | {name: _version(name) for name in (*_LIBRARIES, *_OPTIONAL)}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The differences between the daemon's build and an actor's, in words.

    An optional library that only one of them has does not count: an op or source that needs it fails there, by name.
    """
    return [
        f"{name} is {there.get(name) or 'missing'} there and {mine} here"
        for name, mine in here.items()
        if there.get(name) != mine and not (name in _OPTIONAL and "" in (mine, there.get(name, "")))
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name).partition("+")[0]  # torch's builds for CPU and for GPUs have equal numbers
    except metadata.PackageNotFoundError:
        return ""
