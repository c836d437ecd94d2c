"""How `ElasticTransform` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.elastic_transform import ElasticTransform
from prepserver.transform.draw import Draws
from prepserver.transform.elastic import Field, deformed
from prepserver.transform.stage import Drawn, Stage


class ElasticTransformStage(Stage):
    op = ElasticTransform
    _op: ElasticTransform

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        field = Field(draws.key(), (height, width), self._op.alpha, self._op.sigma)
        return deformed(field, (height, width), self._op.interpolation, self._op.fill)
