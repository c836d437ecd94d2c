"""The questions that are asked of each input: does the compiled path give the bytes and verdicts of the pure one, and
does a lane in company get those that it gets alone?

An input is a file: a JPEG, or a record of a packed dataset. Which rectangles, scales and pipelines are tried follows
from its bytes, so the file alone repeats what it has shown.
"""

from __future__ import annotations

import io
import random
import resource
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from prepserver.pack.transcode import Transcoder, transcode
from prepserver.pipeline.ops import CenterCrop, Decode, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import MAGIC, BrokenRecordError, IndexedScan, read_record
from prepserver.transform import BadSample, RowMaker, SampleKey, decode, native
from prepserver.transform.decode import Encoded
from prepserver.transform.header import read_header
from prepserver.transform.indexed import EncodedScan
from prepserver.transform.native.compiled import VECTORS, Kernels
from prepserver.transform.pillow import PillowImage
from prepserver.transform.scale import LEAST
from prepserver.transform.stage import Box
from tests.support.images import make_rows

MAX_PIXELS = 1 << 16
_MOST_MORE_KIB = 24 << 10  # of memory for one input of so many pixels; a decode takes less than a tenth of it
_USUAL = (True, VECTORS[-1])  # our Huffman decoder, and all that the CPU has
_UNUSUAL = [*((True, vectors) for vectors in VECTORS[:-1]), (False, VECTORS[-1])]

Answer = str | tuple[tuple[int, ...], bytes]
Question = Callable[[], Answer]


class Difference(Exception):
    """A difference between the two paths, or something that an input must not cause; the first line names its kind."""


class _ExactScratch:
    """Replaces `decode.scratch`'s buffer by one of exactly the requested size, with nothing behind it."""

    room = 1

    def get(self, nbytes: int) -> npt.NDArray[np.uint8]:
        # Who asks for one byte takes whatever is there: for `Kernels.crop`, sometimes too little.
        return np.empty(self.room if nbytes == 1 else nbytes, np.uint8)


class _Remembered(PillowImage):
    """Decodes once for all callers: Pillow is on neither path, and takes more than half of the time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._decoded: npt.NDArray[np.uint8] | BadSample | None = None

    def decode(self) -> npt.NDArray[np.uint8]:
        if self._decoded is None:
            try:
                self._decoded = super().decode()
            except BadSample as error:
                self._decoded = error
        if isinstance(self._decoded, BadSample):
            raise self._decoded
        return self._decoded


class Examiner:
    """Asks both paths.

    Args:
        kernels: The compiled kernels.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._scratch = decode._scratch = _ExactScratch()  # type: ignore[assignment]
        decode.PillowImage = lru_cache(maxsize=1)(_Remembered)  # type: ignore[assignment, attr-defined]
        Image.MAX_IMAGE_PIXELS = 1 << 24  # Pillow refuses twice as many: a defect is to be seen, not to end the machine

    def examine(self, data: bytes) -> None:
        """Examine one input.

        Raises:
            Difference: It shows a defect.
        """
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rng = random.Random(zlib.crc32(data))
        self._scratch.room = int(2 ** rng.uniform(10, 18))
        sample = _sample(data)
        if sample is None:
            return
        for kind, what, question in _questions(sample, rng):
            self._use(None)
            expected = _asked(question)
            for mode in (_USUAL, rng.choice(_UNUSUAL)):
                self._use(mode)
                answer = _asked(question)
                if answer != expected:
                    raise Difference(
                        f"{kind} differs, {_named(mode)}\n{what}: {_shown(answer)}, not {_shown(expected)}"
                    )
        self._use(_USUAL)
        if isinstance(sample, bytes):
            _rewrite(sample)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        if more > _MOST_MORE_KIB:
            raise Difference(f"too much memory\n{more >> 10} MiB, where {MAX_PIXELS} pixels are allowed")

    def _use(self, mode: tuple[bool, str] | None) -> None:
        if mode is not None:
            own_entropy, vectors = mode
            self._kernels.use_own_entropy(own_entropy)
            self._kernels.use_vectors(vectors)
        found = None if mode is None else self._kernels
        native._loaded = lambda: (found, native.Choice("pure", ""))  # type: ignore[assignment]
        native.kernels.cache_clear()


def _rewrite(data: bytes) -> None:
    """Examine what `prepserver pack` does to it.

    Raises:
        Difference: It is reported as packed without loss, and is not.
    """
    header = read_header(data)
    if header is None or header.height * header.width > MAX_PIXELS:
        return
    done = transcode(0, data, Transcoder(True))
    if done.how == "lossless":
        before, after = (_by_pillow(each) for each in (data, bytes(read_record(done.record)[2])))
        if before is not None and (after is None or not np.array_equal(before, after)):
            raise Difference("pixels change in packing")


def _by_pillow(data: bytes) -> npt.NDArray[np.uint8] | None:
    """As Pillow decodes it; None for what it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return np.asarray(Image.open(io.BytesIO(data), formats=("JPEG",)))
    except Exception:  # noqa: BLE001 - a decoder may refuse in any way
        return None


def _sample(data: bytes) -> bytes | IndexedScan | None:
    """As the source gives it; None for a record that it refuses."""
    if not data.startswith(MAGIC):
        return data
    try:
        head, lengths, image = read_record(data)
    except BrokenRecordError:
        return None
    return IndexedScan(head, lengths, image) if head.segments else bytes(image)


def _questions(sample: bytes | IndexedScan, rng: random.Random) -> Iterator[tuple[str, object, Question]]:
    """What is asked: its kind, what exactly, and the question."""
    if isinstance(sample, bytes):
        yield "header", "", partial(_header, sample)
    pipelines = [*_pipelines(rng)]
    makers = [RowMaker(pipeline) for pipeline in pipelines]
    for pipeline, maker in zip(pipelines, makers, strict=True):
        yield "row", pipeline, partial(_row, sample, maker)
    yield "row in company", pipelines, partial(_row_in_company, sample, makers)
    try:
        encoded = _opened(sample)
    except BadSample:
        return
    if encoded.height * encoded.width <= MAX_PIXELS:
        for scale in (1, 1, rng.choice((2, 4, 8))):
            if scale == 1 or min(encoded.height, encoded.width) >= LEAST:
                (top, bottom), (left, right) = (_range(rng, side, scale) for side in (encoded.height, encoded.width))
                box = Box(top, left, bottom, right)
                yield "part", f"{box} at 1/{scale}", partial(_part, sample, box, scale)


def _range(rng: random.Random, side: int, scale: int) -> tuple[int, int]:
    """Of a side; every other one touches an end of it."""
    most = side // scale
    begin = rng.choice((0, rng.randrange(most)))
    return begin * scale, rng.choice((most, rng.randint(begin + 1, most))) * scale


def _pipelines(rng: random.Random) -> Iterator[Pipeline]:
    size = (rng.choice((1, 7, rng.randint(1, 99))), rng.choice((1, 8, rng.randint(1, 99))))
    start = Decode(exif_orientation=rng.random() < 0.7, max_pixels=MAX_PIXELS)
    flip = RandomHorizontalFlip()
    yield Pipeline.from_ops([start, RandomResizedCrop(size, scale=(rng.choice((0.08, 0.7)), 1.0)), flip])
    yield Pipeline.from_ops(
        [start, *rng.choice(([Resize(size)], [Resize((20, 40)), CenterCrop(size)], [RandomCrop(9)]))]
    )


def _header(data: bytes) -> Answer:
    compiled = native.kernels()
    return str(read_header(data) if compiled is None else compiled.header(data))


def _opened(sample: bytes | IndexedScan) -> Encoded:
    return EncodedScan(sample) if isinstance(sample, IndexedScan) else Encoded(sample)


def _part(sample: bytes | IndexedScan, box: Box, scale: int) -> Answer:
    encoded = _opened(sample)
    image = encoded.clean(box, encoded.scale(scale))
    return _pixels(box.of(encoded.tolerant()) if image is None else image)


def _row_in_company(sample: bytes | IndexedScan, makers: list[RowMaker]) -> Answer:
    """Those of the first one; each must be what it is alone."""
    rows = [np.zeros(maker.fields[0].shape, maker.fields[0].dtype) for maker in makers]
    failures: Mapping[int, str] = {}
    try:
        make_rows(sample, SampleKey(1, 2, 3), list(zip(makers, rows, strict=True)))
    except BadSample as error:
        failures = error.failures
    answers = [failures.get(place, _pixels(row)) for place, row in enumerate(rows)]
    for maker, answer in zip(makers, answers, strict=True):
        alone = _asked(partial(_row, sample, maker))
        if answer != alone:
            raise Difference(f"row in company differs from row alone\n{_shown(answer)}, not {_shown(alone)}")
    return answers[0]


def _row(sample: bytes | IndexedScan, maker: RowMaker) -> Answer:
    out = np.zeros(maker.fields[0].shape, maker.fields[0].dtype)
    make_rows(sample, SampleKey(1, 2, 3), [(maker, out)])
    return _pixels(out)


def _pixels(image: npt.NDArray[Any]) -> Answer:
    return image.shape, image.tobytes()


def _asked(question: Question) -> Answer:
    try:
        return question()
    except BadSample as error:
        return error.reason
    except MemoryError as error:
        raise Difference("too much memory\na MemoryError") from error


def _named(mode: tuple[bool, str]) -> str:
    own_entropy, vectors = mode
    return f"{'our' if own_entropy else 'their'} Huffman decoder, {vectors}"


def _shown(answer: Answer) -> str:
    if isinstance(answer, str):
        return repr(answer)
    shape, pixels = answer
    return f"{shape} pixels {zlib.crc32(pixels):08x}"
