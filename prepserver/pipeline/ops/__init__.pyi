# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.
from collections.abc import Mapping
from typing import Any

from prepserver.pipeline.op import Op as Op
from prepserver.pipeline.ops.center_crop import CenterCrop as CenterCrop
from prepserver.pipeline.ops.color_jitter import ColorJitter as ColorJitter
from prepserver.pipeline.ops.decode import Decode as Decode
from prepserver.pipeline.ops.grayscale import Grayscale as Grayscale
from prepserver.pipeline.ops.normalize import Normalize as Normalize
from prepserver.pipeline.ops.only import Only as Only
from prepserver.pipeline.ops.pad import Pad as Pad
from prepserver.pipeline.ops.pad_tokens import PadTokens as PadTokens
from prepserver.pipeline.ops.plugin_op import PluginOp as PluginOp
from prepserver.pipeline.ops.random_crop import RandomCrop as RandomCrop
from prepserver.pipeline.ops.random_horizontal_flip import RandomHorizontalFlip as RandomHorizontalFlip
from prepserver.pipeline.ops.random_resized_crop import RandomResizedCrop as RandomResizedCrop
from prepserver.pipeline.ops.random_vertical_flip import RandomVerticalFlip as RandomVerticalFlip
from prepserver.pipeline.ops.resize import Resize as Resize
from prepserver.pipeline.ops.to_dtype import ToDtype as ToDtype
from prepserver.pipeline.ops.to_layout import ToLayout as ToLayout
from prepserver.pipeline.ops.tokenize import Tokenize as Tokenize
from prepserver.pipeline.ops.truncate import Truncate as Truncate

OPS: dict[str, type[Op]]

def op_from_wire(wire: Mapping[str, Any]) -> Op: ...

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Decode",
    "Grayscale",
    "Normalize",
    "Only",
    "Pad",
    "PadTokens",
    "PluginOp",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToDtype",
    "ToLayout",
    "Tokenize",
    "Truncate",
]
