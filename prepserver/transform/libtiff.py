"""libtiff prints its complaints to stderr, for each damaged file in each pass; this stops it.

Nothing is lost: Pillow raises an error for what cannot be decoded, which becomes the sample's verdict.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from PIL import Image  # noqa: F401 - libtiff is mapped along with it

_LIBRARY = re.compile(r"/\S*libtiff[^/\s]*\.so[^/\s]*$", re.MULTILINE)


def hush() -> None:
    """Takes libtiff's handlers for errors and warnings away, for this process and those that it forks."""
    found = _LIBRARY.search(Path("/proc/self/maps").read_text())
    if found is None:
        return  # linked into Pillow, or left out of it
    library = ctypes.CDLL(found[0])
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        setter = getattr(library, name)
        setter.restype, setter.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        setter(None)
