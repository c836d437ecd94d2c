"""Compiled kernels for the slow parts of making a row: a JPEG's header, decoding a part of it, and resizing that.

They are optional. They give exactly the bytes of the pure path (simplejpeg and torch), or nothing, and then the pure
path runs; so they change only the time it takes. `path` says which path runs and why; ``PREPSERVER_NATIVE=0`` in the
environment turns them off.

They call the libjpeg that Pillow is linked to, found at run time through Pillow's own extension module. Pillow's wheels
bring a current libjpeg-turbo, a distribution's Pillow brings the system's. Either way it is in the process already, it
decides about damaged files, and there is nothing to ship. It must have the ABI of libjpeg 6b (62), in which the structs
of all releases of libjpeg-turbo are alike; conda and Ubuntu build ABI 80, and there the pure path runs. Linking the
system's library would tie a wheel to a distribution, and a copy in the wheel would leave its security updates to us.
One part of it is replaced, Huffman decoding, if its release is one whose internals are known (entropy.c).

Two builds of libjpeg-turbo need not give the same pixels, nor do two of torch. So before the kernels are used, they
decode and resize a few images in a process that may crash (`trial`), and the results are compared with those of
simplejpeg and torch. A kernel that differs is not used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import _imaging

from prepserver.transform.native import functions, trial
from prepserver.transform.native.compiled import Kernels
from prepserver.transform.native.questions import trial_questions

_FOLDER = Path(__file__).parent
_LIBRARY = _FOLDER / "_native.so"
_ABI = "6.2"
# fmt: off
_KNOWN_RELEASES = frozenset((
    "2.0.0", "2.0.1", "2.0.2", "2.0.3", "2.0.4", "2.0.5", "2.0.6", "2.1.0", "2.1.1", "2.1.2", "2.1.3", "2.1.4", "2.1.5",
    "2.1.5.1", "3.0.0", "3.0.1", "3.0.2", "3.0.3", "3.0.4", "3.1.0", "3.1.1", "3.1.2", "3.1.3", "3.1.4", "3.1.4.1",
    "3.2.0",
))
# fmt: on
"""Releases of libjpeg-turbo in which our Huffman decoder can replace theirs: in the sources of each, jpegint.h begins
`struct jpeg_entropy_decoder` as entropy.c does, and only jdcoefct.c and jdapistd.c call `decode_mcu`."""
_RELEASE = re.compile(rb"libjpeg-turbo version (\d+(?:\.\d+)+) \(build")  # what cjpeg writes, in each of these releases

_NOT_BUILT = _FOLDER / "_not_built.txt"  # written by hatch_build.py
_REMEDY = (
    "install a C compiler (Debian, Ubuntu: gcc libc6-dev; Fedora: gcc; conda: c-compiler), then install prepserver "
    "again (in a checkout: `python hatch_build.py`)"
)


class Choice(NamedTuple):
    """Which path makes rows, and one line for a person: what the native path covers, or why it is not taken."""

    name: Literal["native", "pure"]
    reason: str


@cache
def kernels() -> Kernels | None:
    """Return the compiled kernels; None if they cannot be used. The first call loads them, in some milliseconds."""
    return _loaded()[0]


def path() -> Choice:
    """Say which path makes rows in this process."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[Kernels | None, Choice]:
    if os.environ.get("PREPSERVER_NATIVE") == "0":
        return None, Choice("pure", "turned off by PREPSERVER_NATIVE=0")
    if not _LIBRARY.exists():
        cause = _NOT_BUILT.read_text().strip() if _NOT_BUILT.exists() else "nothing tried to"
        return None, Choice("pure", f"not built ({cause}): {_REMEDY}")
    abi, version = str(_imaging.jpeglib_version), getattr(_imaging, "libjpeg_turbo_version", None)
    if version is None or abi != _ABI:
        turbo = f"libjpeg-turbo {version}" if version else "not libjpeg-turbo"
        return None, Choice(
            "pure", f"Pillow's libjpeg is {turbo} with ABI {abi}, not {_ABI}; Pillow's own wheel from PyPI has {_ABI}"
        )
    try:
        library = functions.load(str(_LIBRARY))
        built_from = ctypes.string_at(library.prep_source).decode()
    except (OSError, AttributeError) as error:
        return None, Choice("pure", f"cannot be loaded: {error}; {_REMEDY}")
    if built_from != digest(_FOLDER):
        return None, Choice("pure", "built from other sources: run `python hatch_build.py` to build it again")
    pillow = os.fsencode(str(_imaging.__file__))
    missing = library.prep_bind(pillow)
    if missing is not None:
        return None, Choice("pure", f"Pillow's libjpeg {version} cannot be used: {missing.decode()}")
    bound_to = library.prep_bound_to()
    release = _release(bound_to)
    questions = trial_questions()
    try:
        tried_with, results = trial.make([question.call for question in questions], str(_LIBRARY), os.fsdecode(pillow))
    except trial.Failed as error:
        return None, Choice("pure", f"the trial of the kernels failed: {error}")
    if tried_with != bound_to:
        return None, Choice("pure", f"libjpeg is {os.fsdecode(bound_to)} here, and {os.fsdecode(tried_with)} elsewhere")
    right = {
        question.of for question, result in zip(questions, results, strict=True) if question.is_answered_by(result)
    }
    found = Kernels(library)
    left_out = found.use(right, release in _KNOWN_RELEASES)
    if not found.subsamplings:
        return None, Choice("pure", f"Pillow's libjpeg {release} gives other pixels than simplejpeg")
    without = f", without {', '.join(left_out)}" if left_out else ""
    return found, Choice("native", f"{found.vectors}, libjpeg-turbo {release} of Pillow{without}")


def _release(library: bytes) -> str:
    """Return the release of the libjpeg-turbo in this file; Pillow only knows the one that it was compiled for."""
    try:
        found = _RELEASE.search(Path(os.fsdecode(library)).read_bytes())
    except OSError:
        found = None
    return found[1].decode() if found else "of unknown release"


def forget() -> None:
    """Load the kernels anew at the next call, and read the environment again."""
    _loaded.cache_clear()
    kernels.cache_clear()


def digest(folder: Path) -> str:
    """Return the hash of the C sources in `folder`, which a build carries."""
    total = hashlib.sha256()
    for source in sorted(folder.rglob("*.[ch]")):
        total.update(source.read_bytes())
    return total.hexdigest()[:16]
