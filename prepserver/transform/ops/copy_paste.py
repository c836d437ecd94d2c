"""How `CopyPaste` is done: the pixels of some objects of the second part lie on the first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Boxes, Mask
from prepserver.pipeline.ops.copy_paste import CopyPaste
from prepserver.transform.stage import Array, Drawn, Draws, Follow, Mix, MixStage, Part

_NUMBERS = 256  # values that a pixel of a mask can have: 0 for no object, or the number of an object


class CopyPasteStage(MixStage[CopyPaste]):
    def mix(self, samples: int, draws: Draws) -> Mix:
        return Mix((draws.below(samples),), draws)

    def draw_part(self, height: int, width: int, number: int, mix: Mix) -> Drawn:
        return Drawn(None, height, width)

    def joined(self, parts: Sequence[Part], mix: Mix, images: Sequence[str], follows: Sequence[Follow]) -> Part:
        own, other = (_Objects(part[self._op.mask], part[self._op.instances]) for part in parts)
        drawn = other.drawn(mix.draws, _NUMBERS - 1 - int(np.count_nonzero(own.pixels[1:])))
        pasted = np.isin(np.arange(_NUMBERS), other.numbers[drawn])[other.mask]  # for each pixel
        left = _Objects(np.where(pasted, np.uint8(0), own.mask), own.numbers)
        kept = np.flatnonzero((left.counts > 0) | (own.counts == 0))
        own_new = _renumbered(own.numbers[kept][left.counts[kept] > 0], 1)
        other_new = _renumbered(other.numbers[drawn], 1 + int(np.count_nonzero(own_new)))
        mask = np.where(pasted, other_new[other.mask], own_new[own.mask])

        made: Part = {name: np.where(pasted[..., None], parts[1][name], parts[0][name]) for name in images}
        for follow in follows:
            for name, kind in follow.kinds.items():
                mine, theirs = (part[name] for part in parts)
                if isinstance(kind, Mask):
                    made[name] = mask if name == self._op.mask else np.where(pasted, theirs, mine)
                elif isinstance(kind, Boxes):
                    boxes = mine[0].copy()
                    for place in np.flatnonzero((left.counts < own.counts) & (left.counts > 0)):
                        boxes[place] = left.box(int(place))
                    made[name] = np.concatenate((boxes[kept], theirs[0][drawn])), mine[1]
                elif name == self._op.instances:
                    news = own_new[own.numbers[kept]], other_new[other.numbers[drawn]]
                    made[name] = np.concatenate(news).astype(mine.dtype)
                elif kind.is_per_box:
                    made[name] = np.concatenate((mine[kept], theirs[drawn]))
                else:
                    made[name] = mine
        return made


class _Objects:
    """The objects of a part."""

    def __init__(self, mask: Array, numbers: Any) -> None:
        self.mask = mask  # of instances
        # Each object's in the mask; 0 for none.
        self.numbers = np.where((numbers > 0) & (numbers < _NUMBERS), numbers, 0).astype(np.intp)
        self.pixels = np.bincount(mask.ravel(), minlength=_NUMBERS)  # how many each number has
        self.counts = np.where(self.numbers > 0, self.pixels[self.numbers], 0)  # how many each object has

    def drawn(self, draws: Draws, room: int) -> Array:
        """Return the places of the objects that are pasted, at most `room`."""
        there = np.flatnonzero(self.counts)
        return there[sorted({draws.below(len(there)) for _ in there})][: max(0, room)]

    def box(self, place: int) -> Array:
        """Return the box around an object's pixels."""
        shown = self.mask == self.numbers[place]
        rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
        return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], np.float32)


def _renumbered(numbers: Array, first: int) -> Array:
    """Return the new number of each number: 0 for those that are not given."""
    new = np.zeros(_NUMBERS, np.uint8)
    given = np.unique(numbers)
    new[given] = np.arange(first, first + len(given))
    return new
