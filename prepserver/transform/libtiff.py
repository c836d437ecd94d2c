"""Stops libtiff from printing its complaints to stderr for each damaged file in each pass.

Nothing is lost: Pillow raises an error for a file that cannot be decoded, which becomes the sample's verdict.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from PIL import Image  # noqa: F401 - this maps libtiff too

_LIBRARY = re.compile(r"/\S*libtiff[^/\s]*\.so[^/\s]*$", re.MULTILINE)


def hush() -> None:
    """Remove libtiff's handlers for errors and warnings, for this process and its forks."""
    found = _LIBRARY.search(Path("/proc/self/maps").read_text())
    if found is None:
        return  # linked into Pillow, or missing
    library = ctypes.CDLL(found[0])
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        setter = getattr(library, name)
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        setter(None)
