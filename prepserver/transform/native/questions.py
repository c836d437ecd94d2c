"""The calls of a trial, and the pixels that simplejpeg and torch give for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch

from prepserver.transform.header import extent, read_header
from prepserver.transform.native import functions, trial
from prepserver.transform.native.compiled import ALL, SIZES, SUBSAMPLINGS, VECTORS, pitch_of
from prepserver.transform.scale import SCALES, scaled
from prepserver.transform.stage import Box


class Question(NamedTuple):
    """A call of the trial, and the right pixels."""

    # (by our Huffman decoder, place of the subsampling, scale) or (place in `VECTORS`, place of the size).
    of: tuple[Any, ...]
    call: trial.Call
    right: npt.NDArray[np.uint8] | None = None  # the pixels; None if any answer is right
    offset: int = 0  # where the pixels begin in `call`'s memory, if its first column is the image's column 0
    line: int = 0  # bytes from line to line

    def is_answered_by(self, result: trial.Result) -> bool:
        """Say whether the returned pixels are right."""
        if self.right is None:
            return True
        if result.returned < 0 or (self.call.name == "prep_resize" and result.returned != 1):
            return False
        begins = self.offset - (3 * result.returned if self.call.name == "prep_region" else 0)
        image: npt.NDArray[np.uint8] = np.ndarray(self.right.shape, np.uint8, result.out, begins, (self.line, 3, 1))
        return np.array_equal(image, self.right)


def trial_questions() -> list[Question]:
    """Return the calls of the trial: they decode and resize small images of noise."""
    noise = np.random.default_rng(0).integers(0, 256, (83, 109, 3), np.uint8)
    asked: list[Question] = []
    for own in (False, True):
        asked.append(Question(("own", own), trial.Call("prep_use_own_entropy", (own,))))
        for place, name in enumerate(SUBSAMPLINGS):
            grey = name == "Gray"
            pixels = np.ascontiguousarray(noise[:, :, :1]) if grey else noise
            data = simplejpeg.encode_jpeg(pixels, 80, "GRAY" if grey else "RGB", name)
            # No edge of the first part is on an MCU's.
            asked.append(decoded((own, place, 1), data, Box(19, 37, 50, 78), 1))
            asked.extend(decoded((own, place, scale), data, Box(16, 40, 48, 72), scale) for scale in SCALES)
    for vectors in range(len(VECTORS)):
        asked.append(Question(("vectors", vectors), trial.Call("prep_use_vectors", (vectors,))))
        asked.extend(resized((vectors, place), noise, size) for place, size in enumerate(SIZES))
    return asked


def decoded(of: tuple[Any, ...], data: bytes, part: Box, scale: int) -> Question:
    """Return the call that decodes `part` of a JPEG at 1/scale."""
    header = read_header(data)
    assert header is not None
    least = {"min_height": scaled(header.height, scale), "min_width": scaled(header.width, scale)}
    whole = simplejpeg.decode_jpeg(data, **(least if scale > 1 else {}))
    needed, part = extent(data, header, part.bottom, scale), part.over(scale)
    rows, columns = part.bottom - part.top, part.right - part.left
    pitch = pitch_of(columns)
    call = trial.Call(
        "prep_region",
        (data, needed.length, header.height_at, needed.height, needed.left_over, header.width, ALL, scale, part.top,
         part.bottom, part.left, part.right, pitch, functions.OUT),
        (rows + 1) * pitch * 3,
    )  # fmt: skip
    return Question(of, call, np.broadcast_to(part.of(whole), (rows, columns, 3)), 3 * part.left, 3 * pitch)


def resized(of: tuple[Any, ...], image: npt.NDArray[np.uint8], size: tuple[int, int]) -> Question:
    """Return the call that resizes and mirrors `image`."""
    height, width, _ = image.shape
    right = torch.ops.aten._upsample_bilinear2d_aa(
        torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0), list(size), False, None, None
    )[0].permute(1, 2, 0)
    call = trial.Call(
        "prep_resize", (image.tobytes(), 3 * width, height, width, functions.OUT, *size, True), size[0] * size[1] * 3
    )
    return Question(of, call, right.numpy()[:, ::-1], 0, 3 * size[1])
