"""How ops are done on a batch, on the device where it ends up. A file here is such an op.

Most are ops of a pipeline, whose parameters `prepserver.pipeline.ops` has; `MixUp` and `CutMix` need a batch.
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
"""How an op is done, by its class: `NormalizeOnBatch(LinearOp[Normalize])` is that of `Normalize`."""
