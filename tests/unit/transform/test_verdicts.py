"""Whether a sample is bad is said once: the same for every pipeline, every company of lanes, and both paths."""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline.ops import CenterCrop, Decode, Op, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import Head, IndexedScan, pack_record, read_record
from prepserver.transform import BadSample, RowMaker, SampleKey
from prepserver.transform.native import kernels
from prepserver.transform.segments import is_true
from tests.support.images import make_rows
from tests.support.photos import indexed, jpeg, pixels, saved

_PIPELINES: tuple[list[Op], ...] = (
    [RandomResizedCrop(24, scale=(0.02, 0.1))],
    [RandomResizedCrop(24), RandomHorizontalFlip()],
    [Resize((20, 30))],
    [Resize((100, 110))],
    [CenterCrop(32)],
    [Decode(exif_orientation=False), Resize((16, 16))],
)
"""They look at different parts of a sample and at different scales; none of them refuses a sample for its size."""

_DAMAGES = ("flip", "cut off", "cut out", "zeros", "append", "marker")
_MARKERS = (0xC0, 0xC4, 0xD0, 0xD5, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1, 0x01)
Damage = tuple[str, float, int]


@cache
def files() -> dict[str, bytes]:
    """Return a file of each kind that Pillow writes."""
    large, small = pixels(300, 260), pixels(120, 100, 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "4:2:0": jpeg(300, 260),
        "4:4:4": jpeg(300, 260, "444"),
        "grey": jpeg(300, 260, "Gray"),
        "restarts": saved(large, "JPEG", restart_marker_blocks=5),
        "progressive": saved(large, "JPEG", progressive=True),
        "turned": saved(large, "JPEG", exif=exif),
        "CMYK": saved(Image.fromarray(small).convert("CMYK"), "JPEG"),
        "MPO": saved(large, "MPO", save_all=True, append_images=[Image.fromarray(small)]),
        "PNG": saved(small, "PNG"),
        "PNG turned": saved(small, "PNG", exif=exif),
        "PNG palette": saved(Image.fromarray(small).convert("P"), "PNG"),
        "WebP": saved(small, "WEBP"),
        "GIF": saved(small, "GIF"),
        "TIFF": saved(small, "TIFF"),
        "TIFF LZW": saved(small, "TIFF", compression="tiff_lzw"),
    }


def damaged(data: bytes, damages: Sequence[Damage]) -> bytes:
    for kind, where, number in damages:
        at = int(where * len(data))
        match kind:
            case "flip" if data:
                data = data[:at] + bytes((data[at] ^ 1 << number % 8,)) + data[at + 1 :]
            case "cut off":
                data = data[:at]
            case "cut out":
                data = data[:at] + data[at + number :]
            case "zeros":
                data = data[:at] + bytes(len(data[at : at + number])) + data[at + number :]
            case "append":
                data += random.Random(number).randbytes(number)
            case "marker":
                data = data[:at] + bytes((0xFF, _MARKERS[number % len(_MARKERS)])) + data[at + 2 :]
    return data


@cache
def packed(kind: str, segment_mcus: int) -> IndexedScan:
    """Return a packed sample; whatever is drawn for it, it has some hundred segments."""
    return indexed(jpeg(300, 256, kind), segment_mcus, None)


def with_checksums(head: Head, lengths: npt.NDArray[np.int64], image: bytes) -> IndexedScan:
    """Return the sample of a record that says this, as a reader that compares its checksums has it."""
    head = dataclasses.replace(head, image_bytes=len(image), segments=len(lengths), image_crc=zlib.crc32(image))
    return IndexedScan(*read_record(pack_record(head, lengths.astype("<u2").tobytes(), image)))


@st.composite
def lying(draw: st.DrawFn) -> IndexedScan:
    """Records whose checksums are right, and whose index is not that of their JPEG."""
    scan = packed(draw(st.sampled_from(("444", "420", "Gray"))), draw(st.sampled_from((1, 2, 4, 8))))
    head, image = scan.head, bytes(scan.jpeg)
    lengths = np.frombuffer(scan.lengths, "<u2").astype(np.int64)
    last = len(lengths) - 1
    match draw(st.sampled_from(("moved", "swapped", "rotated", "marker", "number", "begin", "shape", "interval"))):
        case "moved":  # the border of two segments
            k = draw(st.integers(0, last - 1))
            by = draw(st.integers(-5, 5).filter(bool))
            lengths[k : k + 2] += (by, -by)
        case "swapped":
            a, b = draw(st.lists(st.integers(0, last), min_size=2, max_size=2, unique=True))
            lengths[[a, b]] = lengths[[b, a]]
        case "rotated":  # in the middle each ends with the number that it should have, and is the eighth from there
            cut = draw(st.integers(last // 2, last - 9))
            room = int(lengths[cut:].sum())
            rest = np.array([2] * (last - cut + 8) + [room - 2 * (last - cut + 8)])
            lengths = np.concatenate(([lengths[:9].sum()], lengths[9:cut], rest))
        case "marker":  # one more in the midst of a segment
            ends = head.scan_at + np.cumsum(lengths)
            k = draw(st.integers(0, last).filter(lambda k: lengths[k] > 8))
            at, mark = int(ends[k]) - 6, draw(st.sampled_from((0xD0 + k % 8, 0xD0, 0xD9, 0xFF)))
            image = image[:at] + bytes((0xFF, mark)) + image[at + 2 :]
        case "number":  # of a marker
            at = head.scan_at + int(np.cumsum(lengths)[draw(st.integers(0, last))]) - 1
            image = image[:at] + bytes((draw(st.sampled_from((0xD3, 0xD9, 0x00, 0xFF))),)) + image[at + 1 :]
        case "begin":
            by = draw(st.integers(1, 6))
            lengths[0] += by
            head = dataclasses.replace(head, scan_at=head.scan_at - by)
        case "shape":
            down = -(-head.height // head.unit[0])
            head = dataclasses.replace(head, height=2 * down * head.unit[0], width=head.width // 2)
        case "interval":
            one = head.interval == 1
            interval, width = (2, 2 * head.width) if one else (head.interval // 2, head.width // 2)
            head = dataclasses.replace(head, interval=interval, width=width)
    return with_checksums(head, lengths, image)


def rows_of(data: bytes | IndexedScan, key: SampleKey, numbers: Sequence[int]) -> list[bytes | None]:
    """Make the rows of these pipelines together; None for one that was not made."""
    makers = [RowMaker(Pipeline.from_ops(_PIPELINES[number])) for number in numbers]
    rows = [np.full(maker.fields[0].shape, 99, maker.fields[0].dtype) for maker in makers]
    bad: set[int] = set()
    try:
        make_rows(data, key, list(zip(makers, rows, strict=True)))
    except BadSample as error:
        bad.update(error.failures)
    return [None if place in bad else row.tobytes() for place, row in enumerate(rows)]


@pytest.mark.usefixtures("each_path")
@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(files())),
    damages=st.lists(
        st.tuples(st.sampled_from(_DAMAGES), st.floats(0, 1, exclude_max=True), st.integers(1, 300)), max_size=3
    ),
    lanes=st.permutations(range(len(_PIPELINES))),
    index=st.integers(0, 99),
)
def test_a_verdict_is_the_same_for_all_lanes_and_in_company(
    kind: str, damages: list[Damage], lanes: list[int], index: int
) -> None:
    data, key = damaged(files()[kind], damages), SampleKey(0, 0, index)
    alone = {lane: rows_of(data, key, [lane])[0] for lane in lanes}
    assert rows_of(data, key, lanes) == [alone[lane] for lane in lanes]
    assert len({row is None for row in alone.values()}) == 1


def test_both_paths_say_the_same_of_damaged_files(path_of: Callable[[str], AbstractContextManager[None]]) -> None:
    rng = random.Random(7)
    samples = [
        damaged(data, [(rng.choice(_DAMAGES), rng.random(), rng.randrange(1, 300)) for _ in range(rng.randrange(1, 4))])
        for data in files().values()
        for _ in range(6)
    ]
    made = []
    for path in ("pure", "native"):
        with path_of(path):
            made.append([rows_of(d, SampleKey(0, 0, n), range(len(_PIPELINES))) for n, d in enumerate(samples)])
    assert made[0] == made[1]
    assert 10 < sum(None in rows for rows in made[0]) < len(samples) - 10  # both verdicts were heard


def test_a_crop_above_a_broken_marker_is_as_bad_as_the_rest() -> None:
    whole = files()["restarts"]
    broken = whole[:-400] + b"\xff\xc4" + whole[-398:]  # tables where none can be: the file cannot be decoded
    key = next(key for key in (SampleKey(0, 0, n) for n in range(99)) if _bottom(key) < 100)
    assert rows_of(broken, key, [0, 2]) == [None, None]
    assert rows_of(broken, key, [0]) == [None]


def _bottom(key: SampleKey) -> int:
    return RowMaker(Pipeline.from_ops(_PIPELINES[0])).plan(300, 260, key).part.bottom


@pytest.mark.usefixtures("each_path")
@settings(max_examples=150, deadline=None)
@given(scan=lying(), lanes=st.permutations(range(len(_PIPELINES))), index=st.integers(0, 99))
def test_a_record_with_false_segments_is_one_verdict_everywhere(
    scan: IndexedScan, lanes: list[int], index: int
) -> None:
    """All lanes give it, alone and together with others."""
    key = SampleKey(0, 0, index)
    alone = {lane: rows_of(scan, key, [lane])[0] for lane in lanes}
    assert rows_of(scan, key, lanes) == [alone[lane] for lane in lanes]
    assert len({row is None for row in alone.values()}) == 1


@settings(max_examples=25, deadline=None)  # each loads the kernels anew
@given(scan=lying(), index=st.integers(0, 99))
def test_both_paths_say_the_same_of_records_that_lie(
    path_of: Callable[[str], AbstractContextManager[None]], scan: IndexedScan, index: int
) -> None:
    made = []
    for path in ("pure", "native"):
        with path_of(path):
            made.append(rows_of(scan, SampleKey(0, 0, index), range(len(_PIPELINES))))
            compiled = kernels()
            assert compiled is None or compiled.is_true(scan) == is_true(scan)
    assert made[0] == made[1]
