"""The kernels' C functions and their types; as a program, ``python functions.py``, it makes the calls of a trial.

That process may crash (see `prepserver.transform.native.trial`). It imports nothing of the project and as little as it
can, so that it takes some hundredths of a second.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import struct
import sys

LONGEST_S = 60  # a trial that hangs ends after this time, even if the process that started it is gone
OUT = None  # in a call's arguments: the address of the memory that it writes to

_COUNT, _SIZE, _NUMBER, _DATA, _ADDRESS = (
    ctypes.c_uint, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p,
)  # fmt: skip
_RECORD = (_DATA, _SIZE, _SIZE, _SIZE, *[_COUNT] * 8)
_DRAWN, _ROOM = (_ADDRESS, _DATA, _NUMBER, _COUNT), (_ADDRESS, _SIZE)
_TYPES: dict[str, tuple[object, ...]] = {
    "prep_header": (_DATA, _SIZE, _ADDRESS),
    "prep_region": (_DATA, _SIZE, _SIZE, _COUNT, _NUMBER, *[_COUNT] * 8, _ADDRESS),
    "prep_scan": (*_RECORD, *[_COUNT] * 6, *_ROOM, _ADDRESS),
    "prep_resize": (_ADDRESS, _SIZE, _NUMBER, _NUMBER, _ADDRESS, _NUMBER, _NUMBER, _NUMBER),
    "prep_crop": (_DATA, _SIZE, *_DRAWN, *_ROOM, _ADDRESS, _ADDRESS),
    "prep_crop_scan": (*_RECORD, _NUMBER, *_DRAWN, *_ROOM, _ADDRESS, _ADDRESS),
    "prep_is_true": _RECORD,
    "prep_cut": (_DATA, _SIZE, _SIZE, _SIZE),
    "prep_rewrite": (_DATA, _SIZE, _COUNT, _ADDRESS),
    "prep_free": (_ADDRESS,),
    "prep_turn": (_ADDRESS, _SIZE, _NUMBER, _NUMBER, _NUMBER, _ADDRESS),
    "prep_warp": (_ADDRESS, _SIZE, *[_NUMBER] * 3, _DATA, _NUMBER, _DATA, _ADDRESS, _NUMBER, _NUMBER),
    "prep_yuv": (_DATA, _SIZE, _SIZE, *[_NUMBER] * 6, _ADDRESS),
    "prep_use_own_entropy": (_NUMBER,),
    "prep_use_vectors": (_NUMBER,),
}


def load(library: str) -> ctypes.CDLL:
    """Load the kernels and set the types of all functions.

    Raises:
        OSError: The library cannot be loaded.
        AttributeError: A function is missing.
    """
    loaded = ctypes.CDLL(library)
    for name, types in _TYPES.items():
        getattr(loaded, name).argtypes = types
    loaded.prep_cut.restype = loaded.prep_rewrite.restype = _SIZE
    loaded.prep_free.restype = None
    loaded.prep_bind.argtypes, loaded.prep_bind.restype = [_DATA], _DATA
    loaded.prep_bound_to.argtypes, loaded.prep_bound_to.restype = [], _DATA
    return loaded


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(LONGEST_S)
    library = load(sys.argv[1])
    missing = library.prep_bind(sys.argv[2].encode(errors="surrogateescape"))
    if missing is not None:
        sys.exit(missing.decode())
    said = [library.prep_bound_to() + b"\n"]
    for name, arguments, out_bytes in json.load(sys.stdin):
        out = ctypes.create_string_buffer(max(1, out_bytes))
        values: dict[object, object] = {OUT: out}
        values.update((value, value.encode("latin-1")) for value in arguments if isinstance(value, str))
        returned = getattr(library, name)(*(values.get(value, value) for value in arguments))
        said.append(struct.pack("<i", returned) + out.raw[:out_bytes])
    sys.stdout.buffer.write(b"".join(said))


if __name__ == "__main__":
    _main()
