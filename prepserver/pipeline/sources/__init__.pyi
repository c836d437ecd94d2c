# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.
from collections.abc import Mapping

from prepserver.pipeline.source import SourceSpec as SourceSpec
from prepserver.pipeline.sources.coco import Coco as Coco
from prepserver.pipeline.sources.file_list import FileList as FileList
from prepserver.pipeline.sources.hugging_face import HuggingFace as HuggingFace
from prepserver.pipeline.sources.image_folder import ImageFolder as ImageFolder
from prepserver.pipeline.sources.packed import Packed as Packed
from prepserver.pipeline.sources.plugin import Plugin as Plugin
from prepserver.pipeline.sources.synthetic_images import SyntheticImages as SyntheticImages
from prepserver.pipeline.sources.tar import Tar as Tar
from prepserver.pipeline.sources.voc import Voc as Voc

SOURCES: dict[str, type[SourceSpec]]

def source_from_wire(wire: object) -> SourceSpec: ...
def place_of(wire: Mapping[str, object]) -> str: ...

__all__ = [
    "Coco",
    "FileList",
    "HuggingFace",
    "ImageFolder",
    "Packed",
    "Plugin",
    "SyntheticImages",
    "Tar",
    "Voc",
]
