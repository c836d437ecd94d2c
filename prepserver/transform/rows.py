"""Makes the rows of one sample: header, the plans of all targets, one decode, a row for each target.

A row's bytes, and whether its sample is bad, are a pure function of (data, pipeline, key): sharing a decode among
targets changes only the time it takes. Targets that want a large image at different scales share only the header.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from prepserver.npy import NPY
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.random_words import SampleKey
from prepserver.protocol.packed import IndexedScan, StoredPixels
from prepserver.transform.decode import Encoded, Pixels
from prepserver.transform.errors import BadSample
from prepserver.transform.follower import Follower
from prepserver.transform.indexed import EncodedScan
from prepserver.transform.kinds import FOLLOWERS
from prepserver.transform.kinds.boxes import BoxesFollower
from prepserver.transform.orientation import UPRIGHT, as_stored
from prepserver.transform.pixels import raw_image
from prepserver.transform.rowmaker import ImageColumn, Plan, RowMaker
from prepserver.transform.scale import divisor
from prepserver.transform.stage import Array, Box, around
from prepserver.transform.stored import StoredImage

Target = tuple[RowMaker, Sequence[np.ndarray[Any, np.dtype[Any]]]]  # a maker and the rows of its fields

NextTarget = Callable[[int], object]
"""Called with the place of the target that is rendered next, or with `DECODING`, which all targets share."""

DECODING = -1

_NO_PART = Box(0, 0, 0, 0)

_APART = (
    ". To move each by itself, declare their sizes, kinds.Image((height, width)), or give one its own: "
    "Only({!r}, Resize((84, 84)))"
)


class Request:
    """What one target needs of an image: a part of the *stored* image, and its scale."""

    __slots__ = ("column", "maker", "orientation", "out", "part", "place", "plan", "scale")

    def __init__(self, place: int, target: Target, column: ImageColumn, encoded: Encoded, plan: Plan) -> None:
        self.place = place
        self.maker, outs = target
        self.column, self.out, self.plan = column, outs[column.out], plan
        self.orientation = encoded.orientation if self.maker.upright else UPRIGHT
        self.part, self.scale = plan.part, encoded.scale(plan.scale)
        if self.orientation != UPRIGHT:
            height, width = encoded.size(True)
            self.part = as_stored(self.part, self.orientation, height, width)
            # A turned part begins at a whole pixel of the scaled image only if the scale divides the image's sides.
            self.scale = divisor(height, width, self.scale)

    def cut(self, encoded: Encoded, image: Array, decoded: Box, scale: int) -> Array:
        """Return our part, upright; `image` is the part `decoded`, around ours, of the stored image at 1/scale."""
        if decoded != self.part:
            image = self.part.within(decoded).over(scale).of(image)
        if self.orientation != UPRIGHT:
            image = encoded.upright(image)
        return image


def make_rows(
    record: Mapping[str, Any], key: SampleKey, targets: Sequence[Target], step: NextTarget = lambda _: None
) -> None:
    """Decode one sample once and render it into every target's row; `step` is called with what is done next.

    An image in `record` is encoded, or an array of pixels; of an indexed image from a packed dataset only the needed
    part is decoded. Random parameters depend on `key`. A row that is not made may hold anything.

    Raises:
        BadSample: At least one row was not made; `failures` says which, and all others are complete.
    """
    rows = SampleRows(record, key, targets, step)
    if not rows.begin():
        rows.finish()


class SampleRows:
    """The rows of one sample, in two steps: `begin` makes images, `finish` all else. See `make_rows`."""

    __slots__ = ("_failures", "_followers", "_key", "_plans", "_record", "_size", "_step", "_targets")

    def __init__(self, record: Mapping[str, Any], key: SampleKey, targets: Sequence[Target], step: NextTarget) -> None:
        self._record, self._key, self._targets, self._step = record, key, targets, step
        self._failures: dict[int, str] = {}
        self._plans: dict[int, Plan] = {}  # by target
        self._followers: dict[int, Follower] = {}
        self._size: dict[int, tuple[int, int]] = {}  # of the upright image that each plan was made for

    def begin(self) -> bool:
        """Make the images; return whether nothing is left for `finish`, which says what was not made."""
        first = self._targets[0][0]
        if self._make_whole():
            return not (first.followers or first.values)
        for number in range(len(first.images)):  # all targets are of one stream, so they have the same columns
            self._make_images(number)
        return False

    def postpone(self) -> bool:
        """Say whether `finish` may come after other samples; if so, drop the encoded images."""
        maker = self._targets[0][0]
        if self._failures or not maker.can_wait:
            return False
        self._record = dict(self._record)
        for image in maker.images:
            del self._record[image.column]
        return True

    def finish(self) -> None:
        """Make the rest; raises as `make_rows`."""
        first = self._targets[0][0]
        for number in range(len(first.followers)):
            self._make_followers(number)
        for place in self._alive():
            maker, outs = self._targets[place]
            if maker.values:
                self._step(place)
                try:
                    maker.make_block([self._record], [self._key], [outs])
                except BadSample as error:
                    self._failures[place] = error.reason
                self._step(DECODING)
        if self._failures:
            raise BadSample(next(iter(self._failures.values())), self._failures)

    def _make_whole(self) -> bool:
        """Make the only image of the only target in one call, if that can be; return whether it was."""
        maker, outs = self._targets[0]
        if len(self._targets) > 1 or maker.whole is None:
            return False
        (image,) = maker.images
        made = maker.whole.make(self._record[image.column], self._key, outs[image.out])
        if made is None:
            return False
        if maker.followers:
            self._size[0] = made[0].size
            self._plans[0] = Plan(_NO_PART, (), moves=maker.whole.moves(*made))
        return True

    def _alive(self) -> list[int]:
        return [place for place in range(len(self._targets)) if place not in self._failures]

    def _make_images(self, number: int) -> None:
        column = self._targets[0][0].images[number]
        try:
            encoded = opened(self._record[column.column], column.declared)
        except BadSample as error:
            self._failures.update(dict.fromkeys(self._alive(), error.reason))
            return
        requests: list[Request] = []
        for place in self._alive():
            target = self._targets[place]
            try:
                column = target[0].images[number]
                plan = self._plan(place, target[0], column, encoded)
                requests.append(Request(place, target, column, encoded, plan))
            except BadSample as error:
                self._failures[place] = error.reason
        for scale in sorted({request.scale for request in requests}):
            self._fill(encoded, [request for request in requests if request.scale == scale])

    def _fill(self, encoded: Encoded, requests: Sequence[Request]) -> None:
        """Decode once for all `requests`, which have one scale, and render each."""
        part, scale = around(request.part for request in requests), requests[0].scale
        image = encoded.clean(part, scale)
        if image is not None:
            self._render(requests, encoded, image, part, scale)
        else:
            self._fill_from_odd(encoded, requests)

    def _fill_from_odd(self, encoded: Encoded, requests: Sequence[Request]) -> None:
        """Render a sample about which libjpeg complained, or that it cannot decode: each row as if it were alone.

        A crop above the damage is read as usual; for the others, Pillow decodes the file.
        """
        rest: list[Request] = []
        for request in requests:
            image = encoded.clean(request.part, request.scale) if len(requests) > 1 else None
            if image is None:
                rest.append(request)
            else:
                self._render([request], encoded, image, request.part, request.scale)
        if not rest:
            return
        try:
            image = encoded.tolerant()
        except BadSample as error:
            self._failures.update((request.place, error.reason) for request in rest)
            return
        self._render(rest, encoded, image, Box(0, 0, encoded.height, encoded.width), 1)

    def _render(self, requests: Sequence[Request], encoded: Encoded, image: Array, decoded: Box, scale: int) -> None:
        for request in requests:
            self._step(request.place)
            part = request.cut(encoded, image, decoded, scale)
            request.maker.render(request.plan, part, request.out, request.column)
        self._step(DECODING)

    def _plan(self, place: int, maker: RowMaker, image: ImageColumn, encoded: Encoded) -> Plan:
        """Return the target's plan for an image: drawn for the first one, and the same for others unless `apart`."""
        refuse_large((encoded.height, encoded.width), maker)  # before the orientation, which may decode
        size = encoded.size(maker.upright)
        if maker.apart:
            plan = maker.plan(*size, self._key, column=image)
        else:
            if place not in self._plans:
                self._draw(place, maker, size)
            self._same_plane(place, "another image has", size, _APART.format(image.column))
            plan = self._plans[place]
        if image.size not in (None, plan.size):
            found = f"its {image.column} has {size[1]} x {size[0]} pixels (width x height)"
            raise BadSample(f"{found}, but is declared as kinds.Image({image.declared.size}), (height, width)")
        return plan

    def _draw(self, place: int, maker: RowMaker, size: tuple[int, int]) -> None:
        self._size[place] = size
        boxes = None if maker.boxes is None else self._follower(maker.boxes)
        objects = boxes.objects(size) if isinstance(boxes, BoxesFollower) else None
        self._plans[place] = maker.plan(*size, self._key, objects)

    def _follower(self, number: int) -> Follower:
        if number not in self._followers:
            column, kinds, _ = self._targets[0][0].followers[number]
            try:
                found = FOLLOWERS[type(kinds[column])]({name: self._record[name] for name in kinds}, kinds)
            except BadSample as error:
                raise BadSample(f"{column}: {error.reason}") from error
            self._followers[number] = found
        return self._followers[number]

    def _make_followers(self, number: int) -> None:
        column = self._targets[0][0].followers[number].column
        try:
            follower = self._follower(number)
        except BadSample as error:
            self._failures.update(dict.fromkeys(self._alive(), error.reason))
            return
        for place in self._alive():
            maker, outs = self._targets[place]
            try:
                size = follower.size
                if place not in self._plans and size is not None:
                    refuse_large(size, maker)
                    self._draw(place, maker, size)
                if size is not None:
                    self._same_plane(place, "made for", size)
                self._step(place)
                maker.follow(number, follower, self._size[place], self._plans[place], outs)
            except BadSample as error:
                self._failures[place] = f"{column}: {error.reason}"
            finally:
                self._step(DECODING)

    def _same_plane(self, place: int, what: str, size: tuple[int, int], remedy: str = "") -> None:
        if size != (mine := self._size[place]):
            found, due = f"{size[1]} x {size[0]}", f"{mine[1]} x {mine[0]}"
            raise BadSample(f"{what} {found} pixels (width x height), but the image, upright, has {due}{remedy}")


def opened(value: Any, kind: Image) -> Encoded:
    """Return an image of a record, of this kind, on its way to pixels; raises `BadSample` if it is none."""
    if isinstance(value, bytes) and (value.startswith(NPY) or not kind.is_photo):
        return raw_image(value, kind)
    if isinstance(value, IndexedScan):
        return EncodedScan(value)
    if isinstance(value, StoredPixels):
        return StoredImage(value)
    return Pixels(value) if isinstance(value, np.ndarray) else Encoded(value)


def refuse_large(size: tuple[int, int], maker: RowMaker) -> None:
    """Raise `BadSample` if an image of (height, width) is larger than the maker's limit."""
    if size[0] * size[1] > maker.max_pixels:
        raise BadSample(f"{size[0]}x{size[1]} pixels are more than max_pixels={maker.max_pixels}")
