"""The way of one sample: header, plans of all who want it, one decode, a row for each.

What a worker calls. The law: a row's bytes, or its being bad, are a pure function of (data, pipeline, key);
that several share a decode shows in nothing but the time it takes. Those who want a large one at different scales
share the header only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prepserver.protocol.packed import IndexedScan
from prepserver.transform.decode import Encoded
from prepserver.transform.draw import SampleKey
from prepserver.transform.errors import BadSample
from prepserver.transform.indexed import EncodedScan
from prepserver.transform.orientation import UPRIGHT, as_stored
from prepserver.transform.rowmaker import Plan, RowMaker
from prepserver.transform.scale import divisor
from prepserver.transform.stage import Array, Box, around

Target = tuple[RowMaker, np.ndarray[Any, np.dtype[Any]]]

Step = Callable[[int], object]
"""Called with the place of the target that is about to be rendered, or with `DECODING`: what all targets share."""

DECODING = -1


def _unmarked(_place: int) -> None:
    """Nobody asks how far it has got."""


class _Order:
    """One target's plan for the sample, and the part of the *stored* image that it needs, and at what scale."""

    __slots__ = ("maker", "orientation", "out", "part", "place", "plan", "scale")

    def __init__(self, place: int, target: Target, encoded: Encoded, key: SampleKey) -> None:
        self.place = place
        self.maker, self.out = target
        if encoded.height * encoded.width > self.maker.max_pixels:  # before the orientation, which may decode
            raise BadSample(f"{encoded.height}x{encoded.width} pixels are more than max_pixels={self.maker.max_pixels}")
        self.orientation = encoded.orientation if self.maker.upright else UPRIGHT
        height, width = encoded.size(self.maker.upright)
        self.plan: Plan = self.maker.plan(height, width, key)
        self.part, self.scale = self.plan.part, encoded.scale(self.plan.scale)
        if self.orientation != UPRIGHT:
            self.part = as_stored(self.part, self.orientation, height, width)
            # Seen from another corner, so the scale must divide the sides: the part begins at a whole pixel of it.
            self.scale = divisor(height, width, self.scale)

    def fill(self, encoded: Encoded, image: Array, decoded: Box, scale: int) -> None:
        """Render into the row; `image` is the part `decoded`, with ours in it, of the image as stored at 1/scale."""
        if decoded != self.part:
            image = self.part.within(decoded).over(scale).of(image)
        if self.orientation != UPRIGHT:
            image = encoded.upright(image)
        self.maker.render(self.plan, image, self.out)


def make_rows(data: bytes | IndexedScan, key: SampleKey, targets: Sequence[Target], step: Step = _unmarked) -> None:
    """Decode one sample once and render it into every target's row.

    Args:
        data: The encoded image; an indexed one of a packed dataset is decoded only around what is needed.
        key: What the random parameters hang on.
        targets: (maker, row) pairs; each row an array of `maker.row.shape` and `maker.row.dtype`, usually in
            shared memory. A row that is not made may hold anything.
        step: Told what is being done; decoding comes first.

    Raises:
        BadSample: at least one row was not made; `failures` says which, and all others are complete.
    """
    if len(targets) == 1:
        maker, out = targets[0]
        if maker.whole is not None and maker.whole.make(data, key, out):
            return
    try:
        encoded = EncodedScan(data) if isinstance(data, IndexedScan) else Encoded(data)
    except BadSample as error:
        raise BadSample(error.reason, dict.fromkeys(range(len(targets)), error.reason)) from error
    failures: dict[int, str] = {}
    orders: list[_Order] = []
    for place, target in enumerate(targets):
        try:
            orders.append(_Order(place, target, encoded, key))
        except BadSample as error:
            failures[place] = error.reason
    if len(orders) == 1:
        _fill(encoded, orders, failures, step)
    else:
        for scale in sorted({order.scale for order in orders}):
            _fill(encoded, [order for order in orders if order.scale == scale], failures, step)
    if failures:
        raise BadSample(next(iter(failures.values())), failures)


def _fill(encoded: Encoded, orders: Sequence[_Order], failures: dict[int, str], step: Step) -> None:
    """Decode for all `orders`, which are of one scale, and render each."""
    part, scale = orders[0].part, orders[0].scale
    if len(orders) > 1:
        part = around(order.part for order in orders)
    image = encoded.clean(part, scale)
    if image is not None:
        _render(orders, encoded, image, part, scale, step)
    else:
        _fill_from_odd(encoded, orders, failures, step)


def _fill_from_odd(encoded: Encoded, orders: Sequence[_Order], failures: dict[int, str], step: Step) -> None:
    """Render from a sample of which libjpeg complained, or that is not for it: each row as if it were alone.

    A crop above the damage is read as ever; the others get what Pillow makes of the file.
    """
    rest: list[_Order] = []
    for order in orders:
        image = encoded.clean(order.part, order.scale) if len(orders) > 1 else None
        if image is None:
            rest.append(order)
        else:
            _render([order], encoded, image, order.part, order.scale, step)
    if not rest:
        return
    try:
        image = encoded.tolerant()
    except BadSample as error:
        failures.update((order.place, error.reason) for order in rest)
        return
    _render(rest, encoded, image, Box(0, 0, encoded.height, encoded.width), 1, step)


def _render(orders: Sequence[_Order], encoded: Encoded, image: Array, decoded: Box, scale: int, step: Step) -> None:
    for order in orders:
        step(order.place)
        order.fill(encoded, image, decoded, scale)
    step(DECODING)
