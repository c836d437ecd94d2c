"""How `Mosaic` is done: four parts around a point."""

from collections.abc import Sequence

from prepserver.pipeline.ops.mosaic import Mosaic
from prepserver.transform.chance import in_turn
from prepserver.transform.geometry import cut, resizing
from prepserver.transform.kinds import FOLLOWERS
from prepserver.transform.stage import Box, Drawn, Draws, Follow, Mix, MixStage, Part, tiled


class MosaicStage(MixStage[Mosaic]):
    def mix(self, samples: int, draws: Draws) -> Mix:
        partners = tuple(draws.below(samples) for _ in range(Mosaic.partners))
        height, width = canvas = 2 * self._op.size[0], 2 * self._op.size[1]
        y, x = (int(side * draws.uniform(*self._op.center)) for side in self._op.size)
        places = Box(0, 0, y, x), Box(0, x, y, width), Box(y, 0, height, x), Box(y, x, height, width)
        return Mix(partners, draws, canvas, places)

    def draw_part(self, height: int, width: int, number: int, mix: Mix) -> Drawn:
        place, resized = mix.places[number], self._resized(height, width)
        size = resized.height, resized.width
        rows, columns = place.bottom - place.top, place.right - place.left
        # The corner of the image that lies at the point: the bottom for the upper two, the right for the left two.
        top, left = (size[0] - rows if number < 2 else 0), (size[1] - columns if number % 2 == 0 else 0)
        drawn = in_turn([resized, cut((top, left, rows, columns), size, fill=self._op.fill)], height, width)
        return drawn._replace(scale=resized.scale)

    def joined(self, parts: Sequence[Part], mix: Mix, images: Sequence[str], follows: Sequence[Follow]) -> Part:
        made = {name: tiled([part[name] for part in parts], mix.canvas, mix.places) for name in images}
        for follow in follows:
            of_each = [{name: part[name] for name in follow.kinds} for part in parts]
            made |= FOLLOWERS[type(follow.kinds[follow.column])].joined(of_each, mix.canvas, mix.places)
        return made

    def most_scale(self, height: int, width: int) -> int:
        return self._resized(height, width).scale

    def _resized(self, height: int, width: int) -> Drawn:
        ratio = min(self._op.size[0] / height, self._op.size[1] / width)
        size = max(1, int(height * ratio)), max(1, int(width * ratio))
        return resizing(size, self._op.interpolation, (height, width), self.place)
