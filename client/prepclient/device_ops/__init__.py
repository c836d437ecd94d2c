"""How ops are done on a batch, on the device where it ends up: one file for each op.

Most of them are ops of a pipeline, too, and have their parameters in `prepserver.pipeline.ops`. `MixUp` and `CutMix`
can only be done on a batch.
"""

from __future__ import annotations

import sys
from typing import Any, get_args

from prepclient.batchop import BatchOp
from prepserver.pipeline.members import members
from prepserver.pipeline.op import Op

DEVICE_OPS: dict[type[Op], type[BatchOp[Any]]] = {
    get_args(vars(each)["__orig_bases__"][0])[0]: each
    for each in members(sys.modules[__name__], BatchOp).values()  # type: ignore[type-abstract]
}
"""How an op is done, by the class of the op: `NormalizeOnBatch(LinearOp[Normalize])` for `Normalize`."""
