"""How `AutoAugment` is done."""

from prepserver.pipeline.changes import Scales
from prepserver.pipeline.ops.auto_augment import AutoAugment
from prepserver.transform.augment import Changes
from prepserver.transform.chance import in_turn
from prepserver.transform.stage import Drawn, Draws, Stage

_POLICIES = {
    "imagenet": """
        Posterize 0.4 8; Rotate 0.6 9 | Solarize 0.6 5; AutoContrast 0.6 | Equalize 0.8; Equalize 0.6 |
        Posterize 0.6 7; Posterize 0.6 6 | Equalize 0.4; Solarize 0.2 4 | Equalize 0.4; Rotate 0.8 8 |
        Solarize 0.6 3; Equalize 0.6 | Posterize 0.8 5; Equalize 1.0 | Rotate 0.2 3; Solarize 0.6 8 |
        Equalize 0.6; Posterize 0.4 6 | Rotate 0.8 8; Color 0.4 0 | Rotate 0.4 9; Equalize 0.6 |
        Equalize 0.0; Equalize 0.8 | Invert 0.6; Equalize 1.0 | Color 0.6 4; Contrast 1.0 8 |
        Rotate 0.8 8; Color 1.0 2 | Color 0.8 8; Solarize 0.8 7 | Sharpness 0.4 7; Invert 0.6 |
        ShearX 0.6 5; Equalize 1.0 | Color 0.4 0; Equalize 0.6 | Equalize 0.4; Solarize 0.2 4 |
        Solarize 0.6 5; AutoContrast 0.6 | Invert 0.6; Equalize 1.0 | Color 0.6 4; Contrast 1.0 8 |
        Equalize 0.8; Equalize 0.6
    """,
    "cifar10": """
        Invert 0.1; Contrast 0.2 6 | Rotate 0.7 2; TranslateX 0.3 9 | Sharpness 0.8 1; Sharpness 0.9 3 |
        ShearY 0.5 8; TranslateY 0.7 9 | AutoContrast 0.5; Equalize 0.9 | ShearY 0.2 7; Posterize 0.3 7 |
        Color 0.4 3; Brightness 0.6 7 | Sharpness 0.3 9; Brightness 0.7 9 | Equalize 0.6; Equalize 0.5 |
        Contrast 0.6 7; Sharpness 0.6 5 | Color 0.7 7; TranslateX 0.5 8 | Equalize 0.3; AutoContrast 0.4 |
        TranslateY 0.4 3; Sharpness 0.2 6 | Brightness 0.9 6; Color 0.2 8 | Solarize 0.5 2; Invert 0.0 |
        Equalize 0.2; AutoContrast 0.6 | Equalize 0.2; Equalize 0.6 | Color 0.9 9; Equalize 0.6 |
        AutoContrast 0.8; Solarize 0.2 8 | Brightness 0.1 3; Color 0.7 0 | Solarize 0.4 5; AutoContrast 0.9 |
        TranslateY 0.9 9; TranslateY 0.7 9 | AutoContrast 0.9; Solarize 0.8 3 | Equalize 0.8; Invert 0.1 |
        TranslateY 0.7 9; AutoContrast 0.9
    """,
    "svhn": """
        ShearX 0.9 4; Invert 0.2 | ShearY 0.9 8; Invert 0.7 | Equalize 0.6; Solarize 0.6 6 | Invert 0.9; Equalize 0.6 |
        Equalize 0.6; Rotate 0.9 3 | ShearX 0.9 4; AutoContrast 0.8 | ShearY 0.9 8; Invert 0.4 |
        ShearY 0.9 5; Solarize 0.2 6 | Invert 0.9; AutoContrast 0.8 | Equalize 0.6; Rotate 0.9 3 |
        ShearX 0.9 4; Solarize 0.3 3 | ShearY 0.8 8; Invert 0.7 | Equalize 0.9; TranslateY 0.6 6 |
        Invert 0.9; Equalize 0.6 | Contrast 0.3 3; Rotate 0.8 4 | Invert 0.8; TranslateY 0.0 2 |
        ShearY 0.7 6; Solarize 0.4 8 | Invert 0.6; Rotate 0.8 4 | ShearY 0.3 7; TranslateX 0.9 3 |
        ShearX 0.1 6; Invert 0.6 | Solarize 0.7 2; TranslateY 0.6 7 | ShearY 0.8 4; Invert 0.8 |
        ShearX 0.7 9; TranslateY 0.8 3 | ShearY 0.8 5; AutoContrast 0.7 | ShearX 0.7 2; Invert 0.1
    """,
}  # name, probability and strength of both changes of each of the 25 pairs


class AutoAugmentStage(Stage[AutoAugment]):
    def __init__(self, op: AutoAugment, place: int) -> None:
        super().__init__(op, place)
        self._changes = Changes(Scales(10, 0.3, 150.0 / 331.0, 30.0, 0.9, (8, 4)), op.interpolation, op.fill)
        self._pairs = [[each.split() for each in pair.split(";")] for pair in _POLICIES[op.policy].split("|")]

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        decisions: list[Drawn] = []
        for name, p, *step in self._pairs[draws.below(len(self._pairs))]:
            if draws.uniform() <= float(p):
                decisions.append(self._changes.draw(name, int(step[0]) if step else 0, height, width, draws))
        return in_turn(decisions, height, width)
