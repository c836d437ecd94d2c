"""How `RandomChannelPermutation` is done."""

from __future__ import annotations

from functools import partial

from prepserver.pipeline.ops.random_channel_permutation import RandomChannelPermutation
from prepserver.transform import tones
from prepserver.transform.chance import changed, shuffled
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class RandomChannelPermutationStage(Stage):
    op = RandomChannelPermutation
    _op: RandomChannelPermutation
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        order = shuffled(3, draws)
        if order == [0, 1, 2]:
            return Drawn(None, height, width)
        return Drawn(partial(changed, [partial(tones.permuted, order=order)]), height, width)
