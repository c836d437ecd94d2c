"""How `RandomPhotometricDistort` is done."""

from __future__ import annotations

from functools import partial

import numpy as np

from prepserver.pipeline.ops.random_photometric_distort import RandomPhotometricDistort
from prepserver.transform import color
from prepserver.transform.chance import changed, shuffled
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage
from prepserver.transform.tones import Change


class RandomPhotometricDistortStage(Stage):
    op = RandomPhotometricDistort
    _op: RandomPhotometricDistort
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        chosen: dict[str, Change] = {}
        for name, limits in (
            ("brightness", op.brightness), ("contrast", op.contrast), ("saturation", op.saturation)
        ):  # fmt: skip
            if draws.uniform() < op.p:
                chosen[name] = partial(getattr(color, name), factor=draws.uniform(*limits))
        if draws.uniform() < op.p:
            chosen["hue"] = partial(color.hue, shift=draws.uniform(*op.hue))
        if draws.uniform() >= 0.5 and "contrast" in chosen:
            chosen["contrast"] = chosen.pop("contrast")  # after the others
        changes = list(chosen.values())
        if draws.uniform() < op.p:
            order = shuffled(3, draws)
            changes.append(lambda image: np.take(image, order, 2) if image.shape[2] == 3 else image)
        return Drawn(partial(changed, changes) if changes else None, height, width)
