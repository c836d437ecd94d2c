"""How `AugMix` is done."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import numpy as np

from prepserver.pipeline.changes import COLOURS, GEOMETRY, TABLES, Scales
from prepserver.pipeline.ops.aug_mix import AugMix
from prepserver.transform.augment import Changes
from prepserver.transform.chance import in_turn
from prepserver.transform.stage import Array, Drawn, Draws, Stage, delivered

_NAMES = (*GEOMETRY, *TABLES, *COLOURS)
_STEPS = 10
_BAND_ROWS = 64
_NORMAL = NormalDist()


class AugMixStage(Stage[AugMix]):
    def __init__(self, op: AugMix, place: int) -> None:
        super().__init__(op, place)
        self._names = _NAMES if op.all_ops else _NAMES[: -len(COLOURS)]
        self._changes = Changes(Scales(_STEPS, 0.3, 1.0 / 3.0, 30.0, 0.9, (4, 4)), op.interpolation, op.fill)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        original, changed = _weights(2, op.alpha, draws)
        weights = [weight * changed for weight in _weights(op.mixture_width, op.alpha, draws)]
        chains: list[Drawn] = []
        for _ in weights:
            decisions: list[Drawn] = []
            for _ in range(op.chain_depth if op.chain_depth > 0 else 1 + draws.below(3)):
                name = self._names[draws.below(len(self._names))]
                decisions.append(self._changes.draw(name, draws.below(op.severity), height, width, draws))
            chains.append(in_turn(decisions, height, width))
        return Drawn(partial(_mixed, original, weights, chains), height, width)


def _mixed(
    original: float, weights: Sequence[float], chains: Sequence[Drawn], image: Array, into: Array | None
) -> Array:
    # In 256ths of a level, from a half on: floats of a large image would take twice the memory.
    total = np.full(image.shape, 128, np.uint16)
    for weight, chain in zip((original, *weights), (None, *chains), strict=True):
        mixed = image if chain is None or chain.step is None else chain.step(image, None)
        for row in range(0, len(total), _BAND_ROWS):
            band = slice(row, row + _BAND_ROWS)
            total[band] += (mixed[band].astype(np.float32) * np.float32(weight * 256.0)).astype(np.uint16)
    return delivered(np.right_shift(total, 8, out=total).astype(np.uint8), into)


def _weights(count: int, alpha: float, draws: Draws) -> list[float]:
    parts = [_gamma(alpha, draws) for _ in range(count)]
    if not any(parts):  # with a small alpha they may all round to 0: one of them outweighs all others
        parts[draws.below(count)] = 1.0
    return [part / sum(parts) for part in parts]


def _gamma(shape: float, draws: Draws) -> float:
    """Draw from a gamma distribution (Marsaglia and Tsang 2000)."""
    if shape < 1.0:
        return _gamma(shape + 1.0, draws) * float(max(draws.uniform(), 1e-16) ** (1.0 / shape))
    d = shape - 1.0 / 3.0
    while True:
        x = _NORMAL.inv_cdf(max(draws.uniform(), 1e-16))
        v = (1.0 + x / math.sqrt(9.0 * d)) ** 3
        if v > 0.0 and math.log(max(draws.uniform(), 1e-16)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return d * v
