"""Builds what is fuzzed: the kernels and, where its source is given, libjpeg-turbo, both under ASan and UBSan.

Pillow's libjpeg comes without its source, so an instrumented one is built from a release's source. Without that the
kernels alone are instrumented, on Pillow's libjpeg: its heap blocks still have ASan's guards, like all of the process.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import hatch_build

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / ".fuzz"
SOURCE_VARIABLE = "LIBJPEG_TURBO"
HOW = (
    f"install cmake and name the source of a libjpeg-turbo release in {SOURCE_VARIABLE}, as .ci/libjpeg-source prints "
    "it where apt has one"
)
_FLAGS = [
    *("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "-fsanitize-coverage=trace-pc",
]


class NotBuilt(Exception):
    """There is nothing to fuzz, and why."""


@dataclass(frozen=True)
class Built:
    """What there is.

    Attributes:
        kernels: The kernels' library.
        libjpeg: libjpeg's; None where there is no source.
        runtime: What must be preloaded.
    """

    kernels: Path
    libjpeg: Path | None
    runtime: Path


def build() -> Built:
    """Build what is not built yet; seconds for the kernels, half a minute for libjpeg.

    Raises:
        NotBuilt: It cannot be built.
    """
    compiler = os.environ.get("CC") or "gcc"
    if shutil.which(compiler) is None:
        raise NotBuilt(f"no compiler {compiler}; CC names another")
    runtime = Path(_run([compiler, "-print-file-name=libasan.so"]).strip())
    if not runtime.is_absolute():
        raise NotBuilt(f"{compiler} has no AddressSanitizer (libasan.so)")
    coverage, folder = OUT / "coverage.o", ROOT / hatch_build.FOLDER
    OUT.mkdir(exist_ok=True)
    _run([compiler, "-O2", "-fPIC", "-c", str(Path(__file__).parent / "coverage.c"), "-o", str(coverage)])
    kernels = OUT / f"kernels-{_digest(*sorted(folder.rglob('*.[ch]')))}.so"
    if not kernels.exists():
        sources = [str(coverage), *map(str, sorted(folder.glob("*.c")))]
        flags = [*hatch_build.FLAGS, *_FLAGS]
        _run([compiler, *flags, "-o", f"{kernels}.new", *sources, "-ldl", "-lm"])
        os.replace(f"{kernels}.new", kernels)
    return Built(kernels, _libjpeg(compiler, coverage), runtime.resolve())


def _libjpeg(compiler: str, coverage: Path) -> Path | None:
    if SOURCE_VARIABLE not in os.environ:
        return None
    source = Path(os.environ[SOURCE_VARIABLE]).resolve()
    if not (source / "CMakeLists.txt").exists():
        raise NotBuilt(f"{SOURCE_VARIABLE}={source} holds no libjpeg-turbo: {HOW}")
    if shutil.which("cmake") is None:
        raise NotBuilt(f"no cmake: {HOW}")
    folder = OUT / f"libjpeg-{_digest(source / 'CMakeLists.txt', source / 'ChangeLog.md')}"
    options = {
        "CMAKE_C_COMPILER": compiler,
        "CMAKE_C_FLAGS": " ".join([*_FLAGS, "-DMULTIPLIER=short"]),  # of 16 bits, as with SIMD
        "CMAKE_SHARED_LINKER_FLAGS": str(coverage),
        "CMAKE_EXE_LINKER_FLAGS": str(coverage),  # of the programs by which CMake tries what there is
        "CMAKE_POLICY_DEFAULT_CMP0056": "NEW",  # for these too
        "CMAKE_BUILD_TYPE": "None",
        "WITH_SIMD": "0",  # assembler would not be instrumented; the pixels are the same
        "WITH_TURBOJPEG": "0",
        "ENABLE_STATIC": "0",
    }
    defined = [f"-D{name}={value}" for name, value in options.items()]
    _run(["cmake", "-S", str(source), "-B", str(folder), *defined])
    _run(["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1), "--target", "jpeg"])
    return folder / "libjpeg.so"


def _digest(*files: Path) -> str:
    contents = b"".join(file.read_bytes() for file in [*files, *Path(__file__).parent.glob("coverage.c")])
    return hashlib.sha256(contents + " ".join([*hatch_build.FLAGS, *_FLAGS]).encode()).hexdigest()[:16]


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise NotBuilt(f"`{' '.join(command[:4])} ...` failed:\n{result.stderr.strip()[-2000:]}")
    return result.stdout
