"""Ops that change values: decode, colours, element type, layout. As in torchvision.transforms.v2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import ImageState, Op

DTYPES = ("uint8", "float16", "float32")
DEFAULT_MAX_PIXELS = 64_000_000


@dataclass(frozen=True, slots=True, init=False)
class Decode(Op):
    """Encoded bytes to pixels; implied at the start of a pipeline.

    Attributes:
        exif_orientation: Turn the image as its EXIF tag says, as viewers do (a TIFF is always turned).
        max_pixels: A sample whose header claims more is bad, before anything is decoded: a few hundred bytes
            can claim 12 GiB. At most 2**28; the default holds every camera's photo in 192 MB.
        mode: "RGB", the only one.
    """

    exif_orientation: bool
    max_pixels: int
    mode: str

    def __init__(self, exif_orientation: bool = True, max_pixels: int = DEFAULT_MAX_PIXELS, mode: str = "RGB") -> None:
        self._keep(
            exif_orientation=checks.flag("exif_orientation", exif_orientation),
            max_pixels=checks.integer("max_pixels", max_pixels, 1, checks.MAX_SIDE_PX**2),
            mode=checks.choice("mode", mode, ("RGB",)),
        )

    def shape_after(self, state: ImageState) -> ImageState:
        """Refuse to come second.

        Raises:
            SpecError: always; the pipeline does not ask the first op.
        """
        raise SpecError("op", "Decode", "must be the first op, once")


@dataclass(frozen=True, slots=True, init=False)
class ColorJitter(Op):
    """Random brightness, contrast, saturation and hue, in random order.

    A number v means a factor from max(0, 1 - v) to 1 + v (for hue a shift from -v to v), a pair is the range
    itself; both are kept as the range.

    Attributes:
        brightness: Range of the factor; (1, 1) leaves it out.
        contrast: Likewise.
        saturation: Likewise.
        hue: Range of the shift in turns, within -0.5 to 0.5; (0, 0) leaves it out.
    """

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self._keep(
            brightness=_factor_range("brightness", brightness),
            contrast=_factor_range("contrast", contrast),
            saturation=_factor_range("saturation", saturation),
            hue=_hue_range(hue),
        )

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the state as it is, for bytes only."""
        state.need_uint8(self)
        return state


@dataclass(frozen=True, slots=True, init=False)
class Grayscale(Op):
    """Luma 0.2989 R + 0.587 G + 0.114 B.

    Attributes:
        num_output_channels: 1, or 3 equal ones.
    """

    num_output_channels: int

    def __init__(self, num_output_channels: int = 1) -> None:
        num_output_channels = checks.integer("num_output_channels", num_output_channels, 1, 3)
        if num_output_channels == 2:
            raise SpecError("num_output_channels", num_output_channels, "must be 1 or 3")
        self._keep(num_output_channels=num_output_channels)

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the state with its new channels, for bytes only."""
        state.need_uint8(self)
        return replace(state, channels=self.num_output_channels)


@dataclass(frozen=True, slots=True, init=False)
class ToDtype(Op):
    """Another element type.

    Attributes:
        dtype: "uint8", "float16" or "float32"; torch's own (``torch.float32``) are taken too.
        scale: From uint8 to float: divide by 255, so that 1.0 is white. False by default, as torchvision's.
    """

    dtype: str
    scale: bool

    def __init__(self, dtype: object = "uint8", scale: bool = False) -> None:
        # torch.float32 prints as its name; this room does not import torch to ask
        name = dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")
        self._keep(dtype=checks.choice("dtype", name, DTYPES), scale=checks.flag("scale", scale))

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the state with its new element type.

        Raises:
            SpecError: floats back to bytes.
        """
        if self.dtype == "uint8" and state.dtype != "uint8":
            raise SpecError("dtype", self.dtype, f"cannot follow {state.dtype}: leave the floats out instead")
        if state.dtype != "uint8" or self.dtype == "uint8":
            return replace(state, dtype=self.dtype)
        return replace(state, dtype=self.dtype, top=1.0 if self.scale else 255.0)


@dataclass(frozen=True, slots=True, init=False)
class Normalize(Op):
    """(value - mean) / std, for each channel.

    Attributes:
        mean: One for all channels or one for each, in the units of the image at this place.
        std: Likewise; above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._keep(
            mean=tuple(checks.number("mean", value) for value in checks.items("mean", mean, (1, 3))),
            std=tuple(checks.number("std", value) for value in checks.items("std", std, (1, 3))),
        )
        if min(self.std) <= 0.0:
            raise SpecError("std", std, "must be above 0")

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the state without a greatest value, for floats only.

        Raises:
            SpecError: the image is uint8 here, has another number of channels, or cannot have this mean.
        """
        if state.dtype == "uint8":
            raise SpecError(
                "mean", list(self.mean), "Normalize needs floats: put ToDtype('float32', scale=True) before it"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, state.channels):
                raise SpecError(name, list(values), f"must have 1 value or one for each of {state.channels} channels")
        check_mean("mean", self.mean, state.top)
        return replace(state, top=None)


@dataclass(frozen=True, slots=True, init=False)
class ToLayout(Op):
    """How a row is stored and seen; the last op.

    Without it a row is stored as (H, W, C) and seen as (C, H, W): torch's channels_last, at no cost.

    Attributes:
        layout: "CHW" (stored and seen as C, H, W) or "HWC" (stored and seen as H, W, C).
    """

    layout: str

    def __init__(self, layout: str = "CHW") -> None:
        self._keep(layout=checks.choice("layout", layout, ("CHW", "HWC")))

    def shape_after(self, state: ImageState) -> ImageState:
        """Return the state with its layout."""
        return replace(state, layout=self.layout)


def check_mean(field: str, mean: Sequence[float], top: float | None) -> None:
    """Refuse the means of values up to 255 for an image whose values end at 1.

    Args:
        field: To blame.
        mean: For all channels or for each.
        top: The image's greatest value, None if unknown.

    Raises:
        SpecError: a mean lies above 1, and no value does.
    """
    if top == 1.0 and max(mean) > 1.0:
        reason = "the values lie in [0, 1] here, so no mean is above 1: divide means and stds by 255"
        raise SpecError(field, list(mean), reason)


def _factor_range(field: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.number_range(field, value, 0.0, 1e3)
    spread = checks.number(field, value, 0.0, 1e3)
    return max(0.0, 1.0 - spread), 1.0 + spread


def _hue_range(value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.number_range("hue", value, -0.5, 0.5)
    spread = checks.number("hue", value, 0.0, 0.5)
    return 0.0 - spread, spread
