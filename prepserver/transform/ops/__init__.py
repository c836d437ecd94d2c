"""How each op is done: a stage draws for one sample and returns a step. Each file here is a stage, named after its op.

`prepserver.pipeline.ops` says what an op is. `Decode` and `ToLayout` have no stage: decoding comes before all stages,
and the row that the last stage writes to has the order of the axes.
"""

import sys
from typing import Any

from prepserver.pipeline.members import members
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import OPS
from prepserver.transform.stage import Stage

STAGES: dict[type[Op], type[Stage[Any]]] = {
    OPS[name.removesuffix("Stage")]: stage for name, stage in members(sys.modules[__name__], Stage).items()
}
"""Stage classes by their op: `SolarizeStage` would be that of `Solarize`."""


def stage_of(op: Op, place: int) -> Stage[Any]:
    """Return the stage of an op at its place in a pipeline."""
    return STAGES[type(op)](op, place)
