"""Tests and measurements that need a GPU, for a machine that has torch with CUDA, but perhaps nothing else and no
network.

``python tests/gpu/machine.py pack [--python 3.12]``, where there is a network: fetches the other packages as wheels
into build/gpu/wheels (about 30 MB), to be taken along with the checkout.

``python tests/gpu/machine.py``, there: unpacks those that are missing, then runs `python -m bench gpu` (figures in
build/gpu/gpu.json), which runs the tests of this folder, too. Arguments are those of that case, such as ``--only
tests``. It needs no pip and no photos.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / "build" / "gpu"
VERSION = f"3.{sys.version_info.minor}"
PACKAGES = {  # by the module that shows whether it is there
    "numpy": "numpy", "msgpack": "msgpack", "zmq": "pyzmq", "simplejpeg": "simplejpeg", "PIL": "pillow",
    "pynvml": "nvidia-ml-py", "rich": "rich", "markdown_it": "markdown-it-py", "mdurl": "mdurl", "pygments": "pygments",
    "pytest": "pytest", "pluggy": "pluggy", "iniconfig": "iniconfig", "packaging": "packaging",
    "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis", "sortedcontainers": "sortedcontainers",
}  # fmt: skip


def pack(python: str) -> int:
    """Fetches the wheels of the versions that this checkout is tested with."""
    return subprocess.call(
        [
            *(sys.executable, "-m", "pip", "download", "--dest", str(KIT / "wheels"), "--no-deps"),
            *("--only-binary", ":all:", "--python-version", python, "--constraint", str(ROOT / "constraints.txt")),
            *("--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"),
            *PACKAGES.values(),
        ]
    )


def unpack() -> list[str]:
    """Makes the packages importable that are not; returns those for which there is no wheel."""
    missing = [module for module in PACKAGES if importlib.util.find_spec(module) is None]
    left = []
    for module in missing:
        name = PACKAGES[module].replace("-", "_")
        wheels = [w for w in (KIT / "wheels").glob("*.whl") if w.name.lower().startswith(f"{name}-") and fits(w)]
        if not wheels:
            left.append(PACKAGES[module])
            continue
        with zipfile.ZipFile(max(wheels)) as archive:
            archive.extractall(KIT / "site")
    return left


def fits(wheel: Path) -> bool:
    """Whether a wheel is for this Python."""
    python, abi = wheel.stem.split("-")[-3:-1]
    if abi == "abi3":
        return int(python.removeprefix("cp3")) <= sys.version_info.minor
    return "py3" in python.split(".") or python == f"cp3{sys.version_info.minor}"


def run(arguments: list[str]) -> int:
    """Tests and measurements."""
    if importlib.util.find_spec("torch") is None:
        sys.stdout.write("no torch here: nothing to do\n")
        return 1
    if left := unpack():
        command = f"python tests/gpu/machine.py pack --python {VERSION}"
        sys.stdout.write(f"missing for Python {VERSION}: {', '.join(left)}. Where there is a network: {command}\n")
        return 1
    paths = [ROOT, ROOT / "client", KIT / "site", *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    subprocess.call([sys.executable, "hatch_build.py"], cwd=ROOT, env=env)  # without a compiler it is slower
    bench = [sys.executable, "-m", "bench", "gpu", "--json", str(KIT / "gpu.json"), *arguments]
    return subprocess.call(bench, cwd=ROOT, env=env)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        parser = argparse.ArgumentParser(prog="machine.py pack")
        parser.add_argument("--python", default="3.12", help="of the other machine")
        sys.exit(pack(parser.parse_args(sys.argv[2:]).python))
    sys.exit(run(sys.argv[1:]))
