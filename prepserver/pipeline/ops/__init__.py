"""The ops as data: their parameters, and how each changes what is known of a record. Each file here is an op.

`prepserver.transform.ops` does the ops. A client can ask only for ops that have a file here.
"""

import sys
from collections.abc import Mapping
from typing import Any

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.members import members
from prepserver.pipeline.op import Op

OPS: dict[str, type[Op]] = members(sys.modules[__name__], Op)  # type: ignore[type-abstract]
"""Op classes by name, on the wire too."""

globals().update(OPS)
__all__ = [*OPS]


def op_from_wire(wire: Mapping[str, Any]) -> Op:
    """Build an op from the map that `Op.to_wire` gives, and trust nothing in it.

    Raises:
        SpecError: The op or a parameter is unknown, missing or wrong; the field is ``op`` or the parameter's name.
    """
    name = wire.get("op")
    kind = OPS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise SpecError("op", name, f"is not one of {', '.join(OPS)}")
    return kind.from_params({key: value for key, value in wire.items() if key != "op"})
