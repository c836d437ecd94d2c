"""`LinearTransformation`: torchvision's products, by a matrix that is a file, and what is said where that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from prepclient import ImageFolder, PrepClient
from prepserver.opfile import BadFile
from prepserver.pipeline.ops import LinearTransformation, Resize, ToDtype
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.spec import FILE, Codes
from prepserver.source import opfiles
from prepserver.transform.ops import linear_transformation, stage_of
from prepserver.worker.fill import LaneError
from tests.support.oracle import torchvision
from tests.support.scenes import Scenes, rows_of, scene

Numbers = npt.NDArray[np.floating[Any]]
COUNT = 4 * 5 * 3
FLOATS = ToDtype("float32", scale=True)


def saved(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def files(folder: Path, dtype: Any = np.float32, count: int = COUNT) -> tuple[Path, Path]:
    rng = np.random.default_rng(count)
    matrix, mean = rng.normal(size=(count, count)), rng.normal(size=count)
    return saved(folder / "matrix.npy", matrix.astype(dtype)), saved(folder / "mean.npy", mean.astype(dtype))


def product(op: LinearTransformation, image: Any) -> Any:
    step: Any = stage_of(op, 2)
    return step.step(image, None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_product_is_torchvisions(tmp_path: Path, dtype: Any, channels: int) -> None:
    matrix, mean = files(tmp_path, dtype, 20 * channels)
    image = np.random.default_rng(1).random((4, 5, channels), np.float32)
    theirs = torchvision("transforms.v2").LinearTransformation(
        *(torch.from_numpy(np.load(path)) for path in (matrix, mean))
    )
    wanted = theirs(torch.from_numpy(image).permute(2, 0, 1).to(theirs.mean_vector.dtype)).permute(1, 2, 0)
    op = LinearTransformation(matrix, mean)
    found = product(op, image)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.numpy(), atol=3e-5, rtol=0)
    within = image.copy()
    step: Any = stage_of(op, 2)
    assert step.step(within, within) is within
    assert np.array_equal(within, found)
    halves = product(op, image.astype(np.float16))
    assert halves.dtype == np.float16
    np.testing.assert_allclose(halves, found, atol=0.02, rtol=0)


def test_sums_are_made_in_the_order_of_the_values(tmp_path: Path) -> None:
    """So bytes do not depend on the CPU: BLAS adds in the order that suits it."""
    matrix, _ = files(tmp_path)
    image = np.random.default_rng(1).random((4, 5, 3), np.float32)
    values, rows = image.transpose(2, 0, 1).ravel() - np.float32(0.25), np.load(matrix)
    total = np.zeros(COUNT, np.float32)
    for place in range(COUNT):
        total = total + values[place] * rows[place]
    found = product(LinearTransformation(matrix, 0.25), image)
    assert np.array_equal(found.transpose(2, 0, 1).ravel(), total)
    assert np.array_equal(found, product(LinearTransformation(matrix, [0.25] * COUNT), image))


def test_a_process_reads_the_files_once_while_they_are_in_use(tmp_path: Path) -> None:
    op, image = LinearTransformation(*files(tmp_path)), np.zeros((4, 5, 3), np.float32)
    stages: list[Any] = [stage_of(op, place) for place in (2, 3)]
    for stage in stages:
        stage.step(image, None)
    assert stages[0]._linear is stages[1]._linear is linear_transformation._in_use[op]
    del stages, stage
    assert op not in linear_transformation._in_use


@pytest.mark.parametrize(
    ("matrix", "mean", "said"),
    [
        (
            np.zeros((9, 9), np.float32),
            0,
            r"matrix.npy .* of \(9, 9\); images of 4 x 5 pixels in 3 channels have 60 .* ",
        ),
        (np.zeros((COUNT, 2), np.float32), 0, r"of \(60, 2\); .* need \(60, 60\)"),
        (np.eye(COUNT), np.zeros(7), r"mean.npy .* of \(7,\); .* need \(60,\)"),
        (np.eye(COUNT, dtype=np.int64), 0, "matrix.npy of LinearTransformation holds int64: save float32 or float64"),
        (np.asfortranarray(np.random.default_rng(0).random((COUNT, COUNT))), 0, "matrix.npy .* is in Fortran order"),
        (b"no array", 0, "matrix.npy of LinearTransformation is no .npy file"),
        (None, 0, "cannot read the file .*matrix.npy: No such file"),
    ],
)
def test_a_file_that_does_not_fit_ends_the_lane_and_is_named(tmp_path: Path, matrix: Any, mean: Any, said: str) -> None:
    path = tmp_path / "matrix.npy"
    if isinstance(matrix, bytes):
        path.write_bytes(matrix)
    elif matrix is not None:
        saved(path, matrix)
    op = LinearTransformation(path, mean if isinstance(mean, int) else saved(tmp_path / "mean.npy", mean))
    pipeline = Pipeline.from_ops([Resize((4, 5)), FLOATS, op])
    source = Scenes([scene(1, 9, 9)])
    with pytest.raises(LaneError, match=said):
        rows_of(source.stream(), pipeline, 1)


def test_the_files_of_a_job_are_those_that_it_began_with(tmp_path: Path) -> None:
    matrix, mean = files(tmp_path)
    pipeline = Pipeline.from_ops([Resize((4, 5)), FLOATS, LinearTransformation(matrix, mean)])
    digests = opfiles.digests(pipeline.files)
    codes: Codes = {(FILE, path): digest for path, digest in zip(pipeline.files, digests, strict=True)}
    known: Any = pipeline.with_code(codes).ops[-1]
    image = np.zeros((4, 5, 3), np.float32)
    product(known, image)
    saved(mean, np.load(mean) + 1)
    with pytest.raises(BadFile, match=r"the file .*matrix\.npy or .*mean\.npy has changed since the job attached"):
        product(known, image)


def test_a_client_trains_on_whitened_images(tmp_path: Path) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.png").write_bytes(scene(number, 9, 9)["image"])
    matrix, mean = files(tmp_path)
    ops, source = [Resize((4, 5)), FLOATS], ImageFolder(folder.parent)
    with PrepClient(source, ops, batch_size=3, inline=True) as plain:
        ((images, _),) = list(plain)
    with PrepClient(source, [*ops, LinearTransformation(matrix, mean)], batch_size=3, inline=True) as client:
        ((found, _),) = list(client)
    wanted = (images.flatten(1) - torch.from_numpy(np.load(mean))) @ torch.from_numpy(np.load(matrix))
    torch.testing.assert_close(found.flatten(1), wanted, rtol=0, atol=3e-5)
