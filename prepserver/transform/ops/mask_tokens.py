"""How `MaskTokens` is done: by one random word for each token."""

from typing import Any

import numpy as np

from prepserver.pipeline.kinds import NO_LABEL
from prepserver.pipeline.ops.mask_tokens import MaskTokens
from prepserver.pipeline.record import Columns
from prepserver.transform.noise import Noise
from prepserver.transform.stage import Draws, RecordStage

_MASKED, _REPLACED = round(0.8 * 2**16), round(0.9 * 2**16)


class MaskTokensStage(RecordStage[MaskTokens]):
    def __init__(self, op: MaskTokens, place: int) -> None:
        super().__init__(op, place)
        self.makes = (op.column, op.labels)
        self._special = np.array(op.special, np.int64)
        self._below = round(op.probability * 2**16)

    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op, tokens = self._op, np.asarray(values[self._op.column], np.int64)
        noise = Noise(draws.key()).uniform(8 * len(tokens))
        halves = noise.view("<u2").reshape(-1, 4)
        chosen = (halves[:, 0] < self._below) & ~np.isin(tokens, self._special)
        values[op.labels] = np.where(chosen, tokens, NO_LABEL)
        becomes = halves[:, 1]
        # 32 bits times the size of the vocabulary, which has fewer: every token is as likely, up to 2**-32.
        random = (noise.view("<u4")[1::2].astype(np.uint64) * np.uint64(op.vocabulary)) >> np.uint64(32)
        tokens = np.where(chosen & (becomes < _MASKED), op.mask, tokens)
        values[op.column] = np.where(
            chosen & (becomes >= _MASKED) & (becomes < _REPLACED), random.astype(np.int64), tokens
        )
