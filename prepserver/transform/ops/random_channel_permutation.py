"""How `RandomChannelPermutation` is done."""

from functools import partial

from prepserver.pipeline.ops.random_channel_permutation import RandomChannelPermutation
from prepserver.transform import tones
from prepserver.transform.chance import changing, shuffled
from prepserver.transform.stage import Drawn, Draws, Stage


class RandomChannelPermutationStage(Stage[RandomChannelPermutation]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        order = shuffled(3, draws)
        changes = [] if order == [0, 1, 2] else [partial(tones.permuted, order=order)]
        return changing(changes, height, width)
