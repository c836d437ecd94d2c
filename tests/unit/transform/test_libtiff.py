"""Damaged TIFFs are told of once, as verdicts, and not by libtiff on stderr."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, features

from tests.support.server import environment

pytestmark = pytest.mark.once

DECODE = """
import sys
from prepserver.transform.errors import BadSample
from prepserver.transform.pillow import PillowImage, hush_libtiff
if "hush" in sys.argv:
    hush_libtiff()
try:
    PillowImage(sys.stdin.buffer.read()).decode()
except BadSample as e:
    print(e)
"""


def damaged() -> bytes:
    """A TIFF whose pixels are broken."""
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF", compression="tiff_lzw")
    data = bytearray(file.getvalue())
    data[200:1200] = b"\xff" * 1000
    return bytes(data)


@pytest.mark.skipif(not features.check("libtiff"), reason="Pillow was built without libtiff")
def test_libtiff_prints_nothing_once_it_is_hushed() -> None:
    said = {}
    for word in ("", "hush"):
        done = subprocess.run(
            [sys.executable, "-c", DECODE, word], input=damaged(), env=environment(), capture_output=True, check=True
        )
        assert b"cannot be decoded" in done.stdout
        said[word] = done.stderr
    assert said[""] != b""
    assert said["hush"] == b""
