"""The changes of `prepserver.pipeline.changes`, done to one sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prepserver.pipeline.changes import GEOMETRY, SIGNED, Scales, matrix
from prepserver.transform import color, tones
from prepserver.transform.chance import changing
from prepserver.transform.stage import Drawn, Draws
from prepserver.transform.warp import warped

_VALUES: dict[str, Callable[[float], tones.Change]] = {
    "Brightness": lambda magnitude: partial(color.brightness, factor=1.0 + magnitude),
    "Color": lambda magnitude: partial(color.saturation, factor=1.0 + magnitude),
    "Contrast": lambda magnitude: partial(color.contrast, factor=1.0 + magnitude),
    "Sharpness": lambda magnitude: partial(tones.sharpness, factor=1.0 + magnitude),
    "Posterize": lambda magnitude: partial(tones.posterize, bits=int(magnitude)),
    "Solarize": lambda magnitude: partial(tones.solarize, threshold=255.0 * magnitude),
    "AutoContrast": lambda _: tones.autocontrast,
    "Equalize": lambda _: tones.equalize,
    "Invert": lambda _: tones.invert,
}


class Changes:
    """Changes, how strong they are, and how those of shape interpolate and fill."""

    def __init__(self, scales: Scales, interpolation: str, fill: tuple[float, ...]) -> None:
        self._scales = scales
        self._how = (interpolation, fill)

    def draw(self, name: str, step: int, height: int, width: int, draws: Draws) -> Drawn:
        """Return the decision to make a change at a step of its scale."""
        return augmented(name, self.magnitude(name, step, height, width, draws), height, width, *self._how)

    def magnitude(self, name: str, step: int, height: int, width: int, draws: Draws) -> float:
        """Return the magnitude of a change at a step of its scale, with a random sign if it has one."""
        magnitude = self._scales.magnitude(name, step, (height, width))
        return -magnitude if name in SIGNED and draws.uniform() <= 0.5 else magnitude


def augmented(
    name: str, magnitude: float, height: int, width: int, interpolation: str, fill: tuple[float, ...]
) -> Drawn:
    """Return the decision to make a change of a magnitude; the size stays."""
    size = height, width
    if name in GEOMETRY:
        return warped(matrix(name, magnitude, size), size, interpolation, fill)
    return changing([_VALUES[name](magnitude)] if name in _VALUES else [], *size)
