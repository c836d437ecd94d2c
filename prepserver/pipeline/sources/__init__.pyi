# Written by `python -m tests.stubs`, which tests/unit/pipeline/test_members.py compares.
from collections.abc import Mapping

from prepserver.pipeline.source import SourceSpec as SourceSpec
from prepserver.pipeline.sources.arrays import Arrays as Arrays
from prepserver.pipeline.sources.bucket_by_length import BucketByLength as BucketByLength
from prepserver.pipeline.sources.coco import Coco as Coco
from prepserver.pipeline.sources.concat import Concat as Concat
from prepserver.pipeline.sources.csv import Csv as Csv
from prepserver.pipeline.sources.file_list import FileList as FileList
from prepserver.pipeline.sources.filter import Filter as Filter
from prepserver.pipeline.sources.hugging_face import HuggingFace as HuggingFace
from prepserver.pipeline.sources.image_folder import ImageFolder as ImageFolder
from prepserver.pipeline.sources.interleave import Interleave as Interleave
from prepserver.pipeline.sources.jsonl import Jsonl as Jsonl
from prepserver.pipeline.sources.mix import Mix as Mix
from prepserver.pipeline.sources.pack_tokens import PackTokens as PackTokens
from prepserver.pipeline.sources.packed import Packed as Packed
from prepserver.pipeline.sources.parquet import Parquet as Parquet
from prepserver.pipeline.sources.plugin import Plugin as Plugin
from prepserver.pipeline.sources.repeat import Repeat as Repeat
from prepserver.pipeline.sources.skip import Skip as Skip
from prepserver.pipeline.sources.split import Split as Split
from prepserver.pipeline.sources.subset import Subset as Subset
from prepserver.pipeline.sources.synthetic_images import SyntheticImages as SyntheticImages
from prepserver.pipeline.sources.take import Take as Take
from prepserver.pipeline.sources.tar import Tar as Tar
from prepserver.pipeline.sources.text_lines import TextLines as TextLines
from prepserver.pipeline.sources.tf_record import TFRecord as TFRecord
from prepserver.pipeline.sources.voc import Voc as Voc
from prepserver.pipeline.sources.windows import Windows as Windows

SOURCES: dict[str, type[SourceSpec]]

def source_from_wire(wire: object) -> SourceSpec: ...
def arrangement_of(wire: Mapping[str, object]) -> tuple[tuple[int, ...], bool]: ...
def location_of(wire: Mapping[str, object]) -> str: ...

__all__ = [
    "Arrays",
    "BucketByLength",
    "Coco",
    "Concat",
    "Csv",
    "FileList",
    "Filter",
    "HuggingFace",
    "ImageFolder",
    "Interleave",
    "Jsonl",
    "Mix",
    "PackTokens",
    "Packed",
    "Parquet",
    "Plugin",
    "Repeat",
    "Skip",
    "Split",
    "Subset",
    "SyntheticImages",
    "TFRecord",
    "Take",
    "Tar",
    "TextLines",
    "Voc",
    "Windows",
]
