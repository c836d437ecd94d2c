"""The changes of `prepserver.pipeline.changes`, done to images (n, C, H, W), uint8, on any device.

The arithmetic is that of `prepserver.transform`, so every device gives the bytes that workers give: sums of whole
numbers, and products and sums of floats that each round once. torch.compile would fuse these, and must not see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch

from prepserver.pipeline.affine import Matrix
from prepserver.pipeline.changes import COLOURS, GEOMETRY, SIGNED, matrix
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.ops.rand_augment import RandAugment

Change = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Makes new images from images (n, C, H, W) and the number of the variant that each is to have, (n,), int64."""


def changes(op: RandAugment, size: Size, device: torch.device) -> list[tuple[tuple[str, ...], Change | None]]:
    """The changes of `prepserver.pipeline.changes.ALL`, in that order, for images of one size on one device.

    Each comes with its names, and has two variants per name: with the op's magnitude, and with its negative. A change
    that is None leaves images as they are.
    """
    strength = {name: op.scales.magnitude(name, op.magnitude, size) for name in SIGNED}
    matrices = [matrix(name, sign * strength[name], size) for name in GEOMETRY for sign in (1, -1)]
    # Doubles, so that 1 - factor rounds as in workers.
    factors = {
        name: torch.tensor((1.0 + strength[name], 1.0 - strength[name]), dtype=torch.float64, device=device)
        for name in COLOURS
    }
    formulas = {"Brightness": _brightness, "Color": _saturation, "Contrast": _contrast, "Sharpness": _sharpness}
    bits = int(op.scales.magnitude("Posterize", op.magnitude, size))
    least = max(0, math.ceil(255.0 * op.scales.magnitude("Solarize", op.magnitude, size)))
    return [
        (("Identity",), None),
        (GEOMETRY, Warps(matrices, op.interpolation, op.fill, size, device)),
        *(((name,), partial(_by_factors, formulas[name], factors[name])) for name in COLOURS),
        (("Posterize",), lambda images, _: images & (256 - (1 << 8 - bits))),
        (("Solarize",), lambda images, _: torch.where(images >= least, ~images, images) if least < 256 else images),
        (("AutoContrast",), _autocontrast),
        (("Equalize",), _equalize),
    ]


def _by_factors(
    formula: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    factors: torch.Tensor,
    images: torch.Tensor,
    numbers: torch.Tensor,
) -> torch.Tensor:
    return formula(images, factors[numbers].reshape(-1, 1, 1, 1))


def _cut(values: torch.Tensor) -> torch.Tensor:
    return values.clamp_(0.0, 255.0).to(torch.uint8)


def _floats(images: torch.Tensor) -> torch.Tensor:
    return images.to(torch.float32)


def _brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return _cut(_floats(images).mul_(_floats(factor)))


def _grey(images: torch.Tensor) -> torch.Tensor:
    """0.2989 R + 0.587 G + 0.114 B, cut to whole numbers: (n, 1, H, W), float32."""
    red, green, blue = _floats(images).unsqueeze(1).unbind(2)
    grey: torch.Tensor = red.mul(0.2989).add_(green.mul(0.587)).add_(blue.mul(0.114)).floor_()
    return grey


def _contrast(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    grey = _grey(images) if images.shape[1] == 3 else images
    # The sum of whole numbers is exact in doubles, in any order.
    mean = grey.sum((1, 2, 3), dtype=torch.float64, keepdim=True) / grey[0].numel()
    return _cut(_floats(images).mul_(_floats(factor)).add_(_floats(mean.mul_(1.0 - factor))))


def _saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    if images.shape[1] == 1:
        return images
    grey = _grey(images).mul_(_floats(1.0 - factor))
    return _cut(_floats(images).mul_(_floats(factor)).add_(grey))


def _sharpness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    if min(images.shape[2:]) <= 2:
        return images
    wide = images.to(torch.int16)
    across = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    inner = wide[..., 1:-1, 1:-1]
    total = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :] + 4 * inner
    smooth = _floats(torch.div(2 * total + 13, 26, rounding_mode="floor"))
    values = _floats(inner)
    result = images.clone()
    result[..., 1:-1, 1:-1] = _cut(smooth.sub_(values).mul_(_floats(1.0 - factor)).add_(values))
    return result


def _autocontrast(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    least, most = (_floats(each) for each in (images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)))
    spread = most - least
    step = torch.where(spread > 0.0, spread, 1.0).mul_(1.0 / 255.0)
    return torch.where(spread > 0.0, _cut(_floats(images).sub_(least).div_(step)), images)


def _equalize(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    n, channels, height, width = images.shape
    planes = images.reshape(n * channels, height * width).to(torch.int64)
    counts = torch.zeros((n * channels, 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(1, planes, torch.ones_like(planes))
    values = torch.arange(256, device=images.device)
    greatest = torch.where(counts > 0, values, 0).amax(1, keepdim=True)
    step = (height * width - counts.gather(1, greatest)) // 255
    before = counts.cumsum(1) - counts
    tables = torch.where(step > 0, (before + step // 2) // step.clamp(min=1), values).clamp_(0, 255)
    return tables.to(torch.uint8).gather(1, planes).view(images.shape)


class Warps:
    """The change that sees images of one `size`, (height, width), through matrices, one for each variant.

    `interpolation` is "nearest" or "bilinear". `fill` is the value of pixels that show no point of the image: one for
    all channels, or one for each.
    """

    def __init__(
        self, matrices: Sequence[Matrix], interpolation: str, fill: tuple[float, ...], size: Size, device: torch.device
    ) -> None:
        self._matrices, self._size, self._device = matrices, size, device
        self._is_nearest = interpolation == "nearest"
        self._fill = torch.tensor(fill, dtype=torch.uint8, device=device).reshape(-1, 1, 1)

    @cached_property
    def _points(self) -> tuple[torch.Tensor, ...]:
        """For each matrix and pixel whether it shows a point of the image, and where this lies: tensors (k, H, W).

        For "nearest" these are row and column; for "bilinear" row and column of the pixel above and to the left, and
        the distances from it down and to the right in 256ths of a pixel.
        """
        height, width = self._size
        # Doubles, one operation at a time: as `prepserver.transform.warp` has it, to the bit.
        seen = torch.tensor(self._matrices, dtype=torch.float64, device="cpu")
        a, b, c, d, e, f, *_ = seen.T.reshape(-1, len(seen), 1, 1)
        x = torch.arange(width, dtype=torch.float64, device="cpu") + 0.5
        y = (torch.arange(height, dtype=torch.float64, device="cpu") + 0.5).unsqueeze(1)
        across, down = a * x + (b * y + c), d * x + (e * y + f)
        found = [(across >= 0.0) & (across < width) & (down >= 0.0) & (down < height)]
        if self._is_nearest:
            found += [down.to(torch.int32), across.to(torch.int32)]
        else:
            rows, columns = (((at - 0.5) * 256.0 + 0.5).floor_().to(torch.int32) for at in (down, across))
            found += [rows >> 8, columns >> 8, rows & 255, columns & 255]
        # Made on the host: the copy blocks until it is done, so clients on other streams may read the result, too.
        return tuple(each.to(self._device) for each in found)

    def __call__(self, images: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        inside, *points = (each[numbers] for each in self._points)
        found = _at(images, points[0], points[1]) if self._is_nearest else _blended(images, *points)
        return torch.where(inside.unsqueeze(1), found, self._fill)


def _at(images: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The pixels of each image at its points (n, H, W); beyond an edge, those of the edge."""
    height, width = images.shape[2:]
    index = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).to(torch.int64)
    return images.flatten(2).gather(2, index.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)).view(images.shape)


def _blended(
    images: torch.Tensor, above: torch.Tensor, left: torch.Tensor, near_below: torch.Tensor, near_right: torch.Tensor
) -> torch.Tensor:
    """The weighted mean of the four pixels around each point, with weights in 256ths."""
    near_below, near_right = near_below.unsqueeze(1), near_right.unsqueeze(1)

    def mixed(rows: torch.Tensor) -> torch.Tensor:
        before, after = _at(images, rows, left).to(torch.int32), _at(images, rows, left + 1).to(torch.int32)
        return before * (256 - near_right) + after * near_right

    blended = mixed(above) * (256 - near_below) + mixed(above + 1) * near_below
    return ((blended + (1 << 15)) >> 16).to(torch.uint8)
