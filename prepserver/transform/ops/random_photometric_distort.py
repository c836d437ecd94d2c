"""How `RandomPhotometricDistort` is done."""

from collections.abc import Callable
from functools import partial

from prepserver.pipeline.ops.random_photometric_distort import RandomPhotometricDistort
from prepserver.transform import color, tones
from prepserver.transform.chance import changing, shuffled
from prepserver.transform.stage import Array, Drawn, Draws, Stage


class RandomPhotometricDistortStage(Stage[RandomPhotometricDistort]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        chosen: dict[Callable[..., Array], tones.Change] = {}
        for change, limits in (
            (color.brightness, op.brightness),
            (color.contrast, op.contrast),
            (color.saturation, op.saturation),
            (color.hue, op.hue),
        ):
            if draws.uniform() < op.p:
                chosen[change] = partial(change, factor=draws.uniform(*limits))
        if draws.uniform() >= 0.5 and color.contrast in chosen:
            chosen[color.contrast] = chosen.pop(color.contrast)  # after the others
        changes = list(chosen.values())
        if draws.uniform() < op.p:
            changes.append(partial(tones.permuted, order=shuffled(3, draws)))
        return changing(changes, height, width)
