"""How `RandomAffine` is done."""

from prepserver.pipeline.affine import affine
from prepserver.pipeline.ops.random_affine import RandomAffine
from prepserver.transform.stage import Drawn, Draws, Stage
from prepserver.transform.warp import warped


class RandomAffineStage(Stage[RandomAffine]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        angle = draws.uniform(*op.degrees)
        across, down = op.translate or (0.0, 0.0)
        shift = [round(draws.uniform(-reach, reach)) for reach in (across * width, down * height)]
        scale = draws.uniform(*op.scale) if op.scale else 1.0
        shear = op.shear or (0.0, 0.0)
        shear_x, shear_y = (draws.uniform(*shear[at : at + 2]) if shear[at:] else 0.0 for at in (0, 2))
        matrix = affine((height, width), angle, (shift[0], shift[1]), scale, (shear_x, shear_y), op.center)
        return warped(matrix, (height, width), op.interpolation, op.fill)
