"""A large image takes the memory that deploy/README.md allows a worker for it, whatever the pipeline."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prepserver.pipeline.ops import CenterCrop, ColorJitter, Decode, Grayscale, Op, RandomResizedCrop, ToDtype
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import BadSample, RowMaker, SampleKey, color
from prepserver.transform.ops.color_jitter import ColorJitterStage
from prepserver.transform.stage import Draws
from tests.support import forked
from tests.support.images import make_rows

pytestmark = pytest.mark.once

HEIGHT, WIDTH = 3000, 4000

_MAKE_ONE_ROW = """
import sys
from pathlib import Path
import numpy as np, torch
from prepserver.pipeline import ops
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey
from tests.support.images import make_rows

torch.set_num_threads(1)
path, small, pipeline = sys.argv[1:]
maker = RowMaker(Pipeline.from_ops(eval(pipeline, vars(ops))))
row = np.empty(maker.fields[0].shape, maker.fields[0].dtype)

def kib(field):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if field in line)

make_rows(Path(small).read_bytes(), SampleKey(0, 0, 0), [(maker, row)])  # what is loaded once is not the image's
data = Path(path).read_bytes()
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
before = kib("VmRSS")
make_rows(data, SampleKey(0, 0, 1), [(maker, row)])
print((kib("VmHWM") - before) * 1024)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Makes a large image and a small one in a format."""
    folder = tmp_path_factory.mktemp("large")
    tile = np.random.default_rng(0).integers(0, 256, (HEIGHT // 50, WIDTH // 50, 3), dtype=np.uint8)
    picture = Image.fromarray(tile.repeat(50, 0).repeat(50, 1))
    grey16 = Image.fromarray(np.asarray(picture)[:, :, 0].astype(np.uint16) * 257)

    def make(kind: str) -> tuple[Path, Path]:
        suffix, image = ("png", grey16) if kind == "png16" else (kind, picture)
        paths = folder / f"{kind}.{suffix}", folder / f"{kind}_small.{suffix}"
        if not paths[0].exists():
            image.save(paths[0])
            image.resize((300, 300), Image.Resampling.NEAREST).save(paths[1])
        return paths

    return make


@pytest.mark.parametrize(
    ("kind", "pipeline", "bytes_per_pixel"),
    [
        ("jpg", "[RandomResizedCrop(224)]", 2),
        ("png16", "[RandomResizedCrop(224)]", 25),
        ("jpg", "[ColorJitter(.4, .4, .4, .1), RandomResizedCrop(224)]", 25),
        ("webp", "[ColorJitter(.4, .4, .4, .1), RandomResizedCrop(224)]", 25),
        ("webp", "[Grayscale(3), RandomResizedCrop(224)]", 25),
        (
            "jpg",
            "[AugMix(), GaussianNoise(), GaussianBlur(3), RandomAdjustSharpness(2, 1), RandomResizedCrop(224)]",
            25,
        ),
        ("webp", "[ToDtype('float32', scale=True), Normalize((.5,) * 3, (.2,) * 3), CenterCrop(224)]", 45),
    ],
)
def test_a_large_image_stays_within_the_documented_memory(
    large: Callable[[str], tuple[Path, Path]], kind: str, pipeline: str, bytes_per_pixel: int
) -> None:
    path, small = large(kind)
    said = forked.python(_MAKE_ONE_ROW, str(path), str(small), pipeline)
    said.check_returncode()
    assert int(said.stdout) < bytes_per_pixel * HEIGHT * WIDTH


@pytest.mark.parametrize(
    "ops", [[ColorJitter(0.8, 0.8, 0.8, 0.5)], [Grayscale(1), ColorJitter(0.5, 0.5)], [Grayscale(3)]]
)
def test_bands_of_rows_give_the_bytes_of_the_whole(monkeypatch: pytest.MonkeyPatch, ops: list[Op]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (45, 37, 3), dtype=np.uint8)

    def rows() -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
        maker = RowMaker(Pipeline.from_ops([*ops, RandomResizedCrop(16)]))
        made = []
        for index in range(20):
            made.append(np.empty(maker.fields[0].shape, np.uint8))
            maker.render(maker.plan(45, 37, SampleKey(0, 0, index)), image, made[-1])
        return made

    whole = rows()
    for pixels in (1, 37, 38, 300):
        monkeypatch.setattr(color, "_BAND_PIXELS", pixels)
        assert all(np.array_equal(a, b) for a, b in zip(whole, rows(), strict=True))


def test_a_colour_change_leaves_its_input_alone() -> None:
    image = np.random.default_rng(2).integers(0, 256, (9, 8, 1), dtype=np.uint8)  # one channel is planar as it is
    before = image.copy()
    stage = ColorJitterStage(ColorJitter(0.5), place=1)
    step = stage.draw(9, 8, Draws(SampleKey(0, 0, 0), 1)).step
    assert step is not None
    assert not np.array_equal(step(image, None), before)
    assert np.array_equal(image, before)


def test_floats_of_a_huge_image_are_refused_by_name() -> None:
    encoded = io.BytesIO()
    Image.new("L", (12000, 12000)).save(encoded, "PNG", compress_level=1)
    maker = RowMaker(Pipeline.from_ops([Decode(max_pixels=1 << 28), ToDtype("float32"), CenterCrop(8)]))
    with pytest.raises(BadSample, match=r"would take 1647 MiB .* more than 1024 MiB: crop first, and put ToDtype last"):
        make_rows(
            encoded.getvalue(), SampleKey(0, 0, 0), [(maker, np.empty(maker.fields[0].shape, maker.fields[0].dtype))]
        )


_WEBP = """
import io, resource, sys
from pathlib import Path
from PIL import Image
from prepserver.transform.pillow import PillowImage
from prepserver.transform.errors import BadSample

encoded, broken = io.BytesIO(), io.BytesIO()
Image.new("RGB", (3000, 3000), (10, 200, 30)).save(encoded, "WEBP", lossless=True, method=0)
Image.new("RGB", (30, 30)).save(broken, "WEBP")
pages = int(Path("/proc/self/statm").read_text().split()[5])
before = resource.getrlimit(resource.RLIMIT_DATA)
resource.setrlimit(resource.RLIMIT_DATA, (pages * resource.getpagesize() + int(sys.argv[1]), before[1]))
for content, expected in ((encoded.getvalue(), MemoryError), (broken.getvalue()[:-40], BadSample)):
    try:
        PillowImage(content).decode()
        raise SystemExit("decoded")
    except expected:
        pass
resource.setrlimit(resource.RLIMIT_DATA, before)
assert PillowImage(encoded.getvalue()).decode().shape == (3000, 3000, 3)
"""


@pytest.mark.parametrize("allowed", [20 << 20, 110 << 20])
def test_a_webp_that_lacks_memory_is_not_bad(allowed: int) -> None:
    """libwebp says in the same words that a file is broken: for its canvases, and for its frame.

    In a new process, which has no memory left over from other tests.
    """
    subprocess.run([sys.executable, "-c", _WEBP, str(allowed)], check=True)
