"""How `RandomChoice` of `MixUp` and `CutMix` is done on a batch: one choice for each batch."""

from __future__ import annotations

from prepclient.device_ops._mixing import MixingOnBatch
from prepserver.pipeline.ops.random_choice import RandomChoice


class RandomChoiceOnBatch(MixingOnBatch[RandomChoice]):
    pass
