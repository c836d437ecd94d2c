"""Computes a `PluginOp` with the operator's function, whose results are checked against the declared kind."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from prepserver import plugins
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops.plugin_op import PluginOp
from prepserver.pipeline.record import Columns
from prepserver.plugin_values import as_array, conform, described
from prepserver.seeding import seeded
from prepserver.transform.stage import Array, Drawn, Draws, Stage, delivered


class PluginOpStage(Stage[PluginOp]):
    """Raises `PluginError` if the plug-in is not loaded in this process, or has other code."""

    def __init__(self, op: PluginOp, place: int) -> None:
        super().__init__(op, place)
        self.column = op.column[0] if isinstance(op.column, tuple) else op.column
        self.makes = () if self.column is None else (self.column,)
        if op.together:
            self.makes = tuple(name for name, _ in op.returns) if isinstance(op.returns, tuple) else op.together
        self.takes_blocks = op.block
        self._what = f"op plug-in {op.name!r}"
        self._params = op.params
        self._function = plugins.find("op", op.name, op.code)
        self._returns = op.returns if isinstance(op.returns, Image) else None

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """As `Stage.draw`: draws the key of the function's generator."""
        size = (height, width) if self._returns is None or self._returns.size is None else self._returns.size
        return Drawn(partial(self._pixels, size, draws.key()), *size)

    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        if self._op.together:
            given = {name: _own(values[name]) for name in self._op.together}
            returned = self._columns(self._called(given, draws.key()))
            for name in self.makes:
                values[name] = conform(f"{self._what}, {name},", returned[name], after[name])
            return
        (column,) = self.makes
        values[column] = conform(self._what, self._called(_own(values[column]), draws.key()), after[column])

    def make_block(self, block: Sequence[dict[str, Any]], after: Columns, draws: Sequence[Draws]) -> None:
        if not self.takes_blocks:
            super().make_block(block, after, draws)
            return
        given: Any = {
            name: _stacked([_own(values[name]) for values in block]) for name in self._op.together or self.makes
        }
        keys = [draw.key() for draw in draws]
        if self._op.together:
            returned = self._columns(self._called(given, keys))
        else:
            (column,) = self.makes
            returned = {column: self._called(given[column], keys)}
        for name in self.makes:
            what = f"{self._what}, {name}," if self._op.together else self._what
            found = returned[name]
            if not hasattr(found, "__len__") or len(found) != len(block):
                shown = described(found)
                raise plugins.PluginError(f"{what} got a block of {len(block)} values and gives {shown}")
            for values, value in zip(block, found, strict=True):
                values[name] = conform(what, value, after[name])

    def _columns(self, returned: Any) -> Mapping[str, Any]:
        if not isinstance(returned, Mapping) or {*returned} != {*self.makes}:
            got = f"a dict of {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else "no dict"
            raise plugins.PluginError(f"{self._what} declares a dict of {', '.join(self.makes)} and gives {got}")
        return returned

    def _pixels(self, size: tuple[int, int], key: int, image: Array, into: Array | None) -> Array:
        declared = (*size, image.shape[2] if self._returns is None else self._returns.channels)
        dtype = image.dtype if self._returns is None else np.dtype(self._returns.dtype)
        # A copy, because the function may write to it; `image` may lie in a row whose channels come first.
        returned = self._called(np.array(image, order="C"), key)
        pixels = as_array(returned)
        if pixels.shape != declared or pixels.dtype != dtype:
            raise plugins.PluginError(
                f"{self._what} declares an image of shape {declared} and dtype {dtype} and gives {described(returned)}"
            )
        return delivered(np.require(pixels, requirements=("C", "W")), into)

    def _called(self, value: Any, key: int | list[int]) -> Any:
        first = key[0] if isinstance(key, list) else key
        try:
            rng = [_generator(each) for each in key] if isinstance(key, list) else _generator(key)
            # Code that was written for a DataLoader may draw from the global generators.
            with seeded(first, keep=plugins.keeps_random_state):
                return self._function(value, rng, **self._params)
        except Exception as e:
            raise plugins.PluginError(plugins.raised(self._what, e)) from e


def _own(value: Any) -> Any:
    """Return a copy of an array, because the function may write to it."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _stacked(given: list[Any]) -> Any:
    """Return the values of a block as one array, if they are of one shape."""
    # Of one dtype, too: numpy would make one of several, which one sample must not learn of another.
    forms = {(getattr(value, "shape", None), getattr(value, "dtype", type(value))) for value in given}
    return np.stack(given) if len(forms) == 1 and not isinstance(given[0], str | bytes) else given


class _Key(ISeedSequence):
    """The key of a generator of Philox. As ``Philox(key=...)``, which first asks the system for random bytes."""

    def __init__(self, key: int) -> None:
        self._words = np.frombuffer(key.to_bytes(16, "little"), np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return self._words


def _generator(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(_Key(key)))  # type: ignore[arg-type]
