"""How `ElasticTransform` is done."""

from functools import partial

from prepserver.pipeline.ops.elastic_transform import ElasticTransform
from prepserver.transform.elastic import Displacements
from prepserver.transform.moves import Displace
from prepserver.transform.stage import Drawn, Draws, Stage


class ElasticTransformStage(Stage[ElasticTransform]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        field = Displacements(draws.key(), (height, width), op.alpha, op.sigma)
        step = partial(field.look, interpolation=op.interpolation, fill=op.fill)
        return Drawn(step, height, width, moves=(Displace(field, op.fill),))
