"""How `RandomPhotometricDistort` is done."""

from __future__ import annotations

from functools import partial

from prepserver.pipeline.ops.random_photometric_distort import RandomPhotometricDistort
from prepserver.transform import color, tones
from prepserver.transform.chance import changed, shuffled
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class RandomPhotometricDistortStage(Stage):
    op = RandomPhotometricDistort
    _op: RandomPhotometricDistort
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        chosen: dict[str, tones.Change] = {}
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
            changes.append(partial(tones.permuted, order=shuffled(3, draws)))
        return Drawn(partial(changed, changes) if changes else None, height, width)
