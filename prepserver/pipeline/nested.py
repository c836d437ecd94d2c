"""Ops that hold ops, such as `RandomApply`: what holds for a record whatever they do to a sample."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError, within
from prepserver.pipeline.kinds import Image, Kind, Spatial
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns

OpLike = Op | Mapping[str, Any]
"""An op, or the map that `Op.to_wire` gives."""

Ops = Sequence[OpLike]

MAX_INNER = 32
_MAX_DEPTH = 2  # limit on ops within ops: messages bound the depth of their values


def inner(field: str, value: object) -> Op:
    """Return an op within another op, given as that or as `Op.to_wire`; raises `SpecError` if it cannot be nested."""
    if isinstance(value, Mapping):
        from prepserver.pipeline.ops import op_from_wire  # the registry imports the ops, which import this module

        with within(field):
            value = op_from_wire(value)
    if not isinstance(value, Op) or not value.nests:
        raise SpecError(field, value, "must be an op that names no column by itself, and may stand in another")
    return value


def _depth(op: Op) -> int:
    return 1 + max(map(_depth, op.transforms)) if isinstance(op, Nesting) else 0


class Nesting(Op):
    """An op that holds ops."""

    moves = True
    transforms: tuple[Op, ...]

    @abstractmethod
    def outcomes(self) -> Sequence[Sequence[Op]]:
        """Return sequences of ops that a sample may go through: enough of them to know its kinds."""

    @property
    def looks(self) -> int:
        """As `Op.looks`."""
        each = {id(op): op.looks for op in self.transforms}
        return sum(each[id(op)] for ops in self.outcomes() for op in ops)

    def after(self, columns: Columns) -> Columns:
        """Return what holds for a record after any of the outcomes.

        Raises:
            SpecError: An op cannot follow what comes before it, or channels, dtype or layout would depend on chance.
        """
        results: list[Columns] = []
        for ops in self.outcomes():
            result = columns
            for op in ops:
                with within("transforms"):
                    result = op.after(result)
            results.append(result)
        first, *others = results
        return {name: self._either(kind, [other[name] for other in others]) for name, kind in first.items()}

    def _either(self, kind: Kind, others: Sequence[Kind]) -> Kind:
        """Return what is known of a column that has one of several kinds."""
        for other in others:
            if isinstance(kind, Spatial) and isinstance(other, Spatial) and kind.size != other.size:
                kind, other = dataclasses.replace(kind, size=None), dataclasses.replace(other, size=None)
            if isinstance(kind, Image) and isinstance(other, Image) and kind.top != other.top:
                kind, other = dataclasses.replace(kind, top=None), dataclasses.replace(other, top=None)
            if kind != other:
                names = ", ".join(type(op).__name__ for op in self.transforms)
                raise SpecError("transforms", names, "would give some samples other channels, dtype or layout")
        return kind


def transforms(value: object) -> tuple[Op, ...]:
    """Return the ops of an op that holds ops.

    Raises:
        SpecError: It is no list of 1 to `MAX_INNER` ops, or they are nested too deep.
    """
    given = checks.items("transforms", value, range(1, MAX_INNER + 1))
    ops = tuple(inner(f"transforms[{place}]", each) for place, each in enumerate(given))
    if max(map(_depth, ops)) >= _MAX_DEPTH:
        raise SpecError("transforms", value, f"are nested more than {_MAX_DEPTH} deep")
    return ops
