"""A library in the place of the compiled kernels, of the same sources by its own word, that breaks when it decodes."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from prepserver.transform import native

_SOURCE = """
#include <unistd.h>
const char prep_source[] = "%s";
const char *prep_bind(const char *library) { (void)library; return NULL; }
const char *prep_bound_to(void) { return "/nowhere"; }
int prep_header(void) { return 0; }
int prep_region(void) { %s }
int prep_scan(void) { return -1; }
int prep_resize(void) { return 0; }
int prep_crop(void) { return 0; }
int prep_crop_scan(void) { return 0; }
int prep_is_true(void) { return 0; }
int prep_cut(void) { return 0; }
int prep_rewrite(void) { return 0; }
void prep_free(void) {}
int prep_turn(void) { return 0; }
int prep_warp(void) { return 0; }
int prep_yuv(void) { return 0; }
int prep_use_own_entropy(void) { return 0; }
int prep_use_vectors(void) { return 0; }
"""


def broken_library(folder: Path, code: str) -> Path:
    """Compile one whose prep_region does this."""
    source, library = folder / "broken.c", folder / "broken.so"
    source.write_text(_SOURCE % (native.digest(Path(native.__file__).parent), code))
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    subprocess.run([*compiler, "-w", "-fPIC", "-shared", "-o", str(library), str(source)], check=True)
    return library
