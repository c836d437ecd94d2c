# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.
from collections.abc import Mapping
from typing import Any

from prepserver.pipeline.op import Op as Op
from prepserver.pipeline.ops.aug_mix import AugMix as AugMix
from prepserver.pipeline.ops.auto_augment import AutoAugment as AutoAugment
from prepserver.pipeline.ops.center_crop import CenterCrop as CenterCrop
from prepserver.pipeline.ops.clamp_boxes import ClampBoxes as ClampBoxes
from prepserver.pipeline.ops.color_jitter import ColorJitter as ColorJitter
from prepserver.pipeline.ops.convert_boxes import ConvertBoxes as ConvertBoxes
from prepserver.pipeline.ops.copy_paste import CopyPaste as CopyPaste
from prepserver.pipeline.ops.decode import Decode as Decode
from prepserver.pipeline.ops.elastic_transform import ElasticTransform as ElasticTransform
from prepserver.pipeline.ops.five_crop import FiveCrop as FiveCrop
from prepserver.pipeline.ops.gaussian_blur import GaussianBlur as GaussianBlur
from prepserver.pipeline.ops.gaussian_noise import GaussianNoise as GaussianNoise
from prepserver.pipeline.ops.grayscale import Grayscale as Grayscale
from prepserver.pipeline.ops.jpeg import JPEG as JPEG
from prepserver.pipeline.ops.linear_transformation import LinearTransformation as LinearTransformation
from prepserver.pipeline.ops.mask_tokens import MaskTokens as MaskTokens
from prepserver.pipeline.ops.mosaic import Mosaic as Mosaic
from prepserver.pipeline.ops.normalize import Normalize as Normalize
from prepserver.pipeline.ops.only import Only as Only
from prepserver.pipeline.ops.pad import Pad as Pad
from prepserver.pipeline.ops.pad_array import PadArray as PadArray
from prepserver.pipeline.ops.pad_boxes import PadBoxes as PadBoxes
from prepserver.pipeline.ops.pad_keypoints import PadKeypoints as PadKeypoints
from prepserver.pipeline.ops.pad_tokens import PadTokens as PadTokens
from prepserver.pipeline.ops.plugin_op import PluginOp as PluginOp
from prepserver.pipeline.ops.rand_augment import RandAugment as RandAugment
from prepserver.pipeline.ops.random_adjust_sharpness import RandomAdjustSharpness as RandomAdjustSharpness
from prepserver.pipeline.ops.random_affine import RandomAffine as RandomAffine
from prepserver.pipeline.ops.random_apply import RandomApply as RandomApply
from prepserver.pipeline.ops.random_autocontrast import RandomAutocontrast as RandomAutocontrast
from prepserver.pipeline.ops.random_channel_permutation import RandomChannelPermutation as RandomChannelPermutation
from prepserver.pipeline.ops.random_choice import RandomChoice as RandomChoice
from prepserver.pipeline.ops.random_crop import RandomCrop as RandomCrop
from prepserver.pipeline.ops.random_equalize import RandomEqualize as RandomEqualize
from prepserver.pipeline.ops.random_erasing import RandomErasing as RandomErasing
from prepserver.pipeline.ops.random_grayscale import RandomGrayscale as RandomGrayscale
from prepserver.pipeline.ops.random_horizontal_flip import RandomHorizontalFlip as RandomHorizontalFlip
from prepserver.pipeline.ops.random_invert import RandomInvert as RandomInvert
from prepserver.pipeline.ops.random_iou_crop import RandomIoUCrop as RandomIoUCrop
from prepserver.pipeline.ops.random_order import RandomOrder as RandomOrder
from prepserver.pipeline.ops.random_perspective import RandomPerspective as RandomPerspective
from prepserver.pipeline.ops.random_photometric_distort import RandomPhotometricDistort as RandomPhotometricDistort
from prepserver.pipeline.ops.random_posterize import RandomPosterize as RandomPosterize
from prepserver.pipeline.ops.random_resize import RandomResize as RandomResize
from prepserver.pipeline.ops.random_resized_crop import RandomResizedCrop as RandomResizedCrop
from prepserver.pipeline.ops.random_rotation import RandomRotation as RandomRotation
from prepserver.pipeline.ops.random_shortest_size import RandomShortestSize as RandomShortestSize
from prepserver.pipeline.ops.random_solarize import RandomSolarize as RandomSolarize
from prepserver.pipeline.ops.random_vertical_flip import RandomVerticalFlip as RandomVerticalFlip
from prepserver.pipeline.ops.random_zoom_out import RandomZoomOut as RandomZoomOut
from prepserver.pipeline.ops.resize import Resize as Resize
from prepserver.pipeline.ops.sanitize_boxes import SanitizeBoxes as SanitizeBoxes
from prepserver.pipeline.ops.scale_jitter import ScaleJitter as ScaleJitter
from prepserver.pipeline.ops.ten_crop import TenCrop as TenCrop
from prepserver.pipeline.ops.to_dtype import ToDtype as ToDtype
from prepserver.pipeline.ops.to_layout import ToLayout as ToLayout
from prepserver.pipeline.ops.tokenize import Tokenize as Tokenize
from prepserver.pipeline.ops.trivial_augment_wide import TrivialAugmentWide as TrivialAugmentWide
from prepserver.pipeline.ops.truncate import Truncate as Truncate

OPS: dict[str, type[Op]]

def op_from_wire(wire: Mapping[str, Any]) -> Op: ...

__all__ = [  # noqa: RUF022 -- in the order of their modules
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ClampBoxes",
    "ColorJitter",
    "ConvertBoxes",
    "CopyPaste",
    "Decode",
    "ElasticTransform",
    "FiveCrop",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "JPEG",
    "LinearTransformation",
    "MaskTokens",
    "Mosaic",
    "Normalize",
    "Only",
    "Pad",
    "PadArray",
    "PadBoxes",
    "PadKeypoints",
    "PadTokens",
    "PluginOp",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resize",
    "SanitizeBoxes",
    "ScaleJitter",
    "TenCrop",
    "ToDtype",
    "ToLayout",
    "Tokenize",
    "TrivialAugmentWide",
    "Truncate",
]
