"""Samples as the head of a pipeline leaves them, for a cache: see `prepserver.pipeline.caching`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from prepserver.pipeline.random_words import SampleKey
from prepserver.transform.kinds import FOLLOWERS
from prepserver.transform.rowmaker import RowMaker
from prepserver.transform.rows import Request, opened, refuse_large
from prepserver.transform.stage import Box

_NO_KEY = SampleKey(0, 0, 0)  # the head draws nothing


def after_head(
    maker: RowMaker, count: int, record: Mapping[str, Any], fits: Callable[[int], bool]
) -> dict[str, Any] | None:
    """Return a record with its images and masks as the head leaves them: what a cache holds.

    `maker` is of a pipeline with this head, which has `count` stages. `fits` says whether the cache has room for a
    number of bytes, and is called before anything is decoded.

    Returns None if it does not fit, or if rows from the cache would differ from rows made without it: an image that is
    decoded at a smaller scale, or a damaged JPEG, whose rows above the damage are read as usual.

    Raises:
        BadSample: The sample is bad for every pipeline with this head.
    """
    made = dict(record)
    plan, size = None, (0, 0)
    for column in maker.images:
        encoded = opened(record[column.column], column.declared)
        refuse_large((encoded.height, encoded.width), maker)
        if plan is None:
            size = encoded.size(maker.upright)
            plan = maker.plan(*size, _NO_KEY, end=count)
            if not fits(3 * plan.size[0] * plan.size[1]) or (not count and maker.most_scale(*size) > 1):
                return None
        if encoded.size(maker.upright) != size:
            return None
        request = Request(0, (maker, [np.empty(0)] * len(maker.fields)), column, encoded, plan)
        image, decoded, scale = encoded.clean(request.part, request.scale), request.part, request.scale
        if image is None:
            if not count and encoded.is_usual:
                return None
            image, decoded, scale = encoded.tolerant(), Box(0, 0, encoded.height, encoded.width), 1
        image = maker.carried(plan, request.cut(encoded, image, decoded, scale), column)
        made[column.column] = np.array(image, order="C")  # a copy: the decoder's buffer is used again
    assert plan is not None
    for column_name, kinds, _ in maker.followers:
        follower = FOLLOWERS[type(kinds[column_name])]({name: record[name] for name in kinds}, kinds)
        if follower.size != size:
            return None
        made[column_name] = follower.moved(size, plan.moves)[column_name]
    return made
