"""Images of the tests' own making."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from PIL import Image

from prepserver.transform import native
from prepserver.transform.native.compiled import Kernels
from tests.support.complete import missing

Pixels = npt.NDArray[np.uint8]


@cache
def loaded_for(name: str) -> tuple[Kernels | None, native.Choice]:
    """The kernels for a path, tried once, because each trial starts a process."""
    return native.kernels(), native.path()


@contextmanager
def on_path(name: str, anew: bool = False) -> Iterator[None]:
    """Makes rows by the path "native" or "pure" for a while; `anew`: what a test changes decides about it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREPSERVER_NATIVE", "0" if name == "pure" else "")
        native.forget()
        try:
            if not anew:
                loaded = loaded_for(name)
                patch.setattr(native, "_loaded", cache(lambda: loaded))
                native.forget()
            if native.path().name != name:
                missing(f"no compiled kernels: {native.path().reason}")
            yield
        finally:
            patch.undo()
            native.forget()


@pytest.fixture(scope="module", params=["pure", "native"])
def each_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a module's tests by both paths."""
    with on_path(request.param, anew=True):
        yield


@pytest.fixture(scope="session")
def path_of() -> Callable[..., AbstractContextManager[None]]:
    """Return what switches to a path within a test."""
    return on_path


@contextmanager
def using_vectors(best: str) -> Iterator[None]:
    """Has the compiled kernels use no better vector instructions than these for a while."""
    found = native.kernels()
    assert found is not None
    was = found.vectors
    found.use_vectors(best)
    try:
        yield
    finally:
        found.use_vectors(was)


@pytest.fixture(scope="session")
def vectors_up_to() -> Callable[[str], AbstractContextManager[None]]:
    """Return what limits the vector instructions within a test."""
    return using_vectors


@pytest.fixture(scope="session")
def photo() -> Callable[..., Pixels]:
    """Return a maker of smooth images with some grain: (H, W, 3) uint8."""

    def make(height: int, width: int, seed: int = 0) -> Pixels:
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:height, 0:width] / 40.0
        waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.3, 3.0, (3, 3))]
        image = 128 + 90 * np.stack(waves, axis=2) + rng.normal(0, 12, (height, width, 3))
        return image.clip(0, 255).astype(np.uint8)

    return make


@pytest.fixture(scope="session")
def jpeg() -> Callable[..., bytes]:
    """Return a maker of JPEGs by simplejpeg from (H, W, 3) uint8."""

    def make(image: Pixels, subsampling: str = "420", quality: int = 90) -> bytes:
        if subsampling == "Gray":
            return simplejpeg.encode_jpeg(image[:, :, :1].copy(), quality, "GRAY", "Gray")  # type: ignore[no-any-return]
        return simplejpeg.encode_jpeg(image, quality, "RGB", subsampling)  # type: ignore[no-any-return]

    return make


@pytest.fixture(scope="session")
def saved() -> Callable[..., bytes]:
    """Return a maker of any format by Pillow from an array or a Pillow image."""

    def make(image: Pixels | Image.Image, kind: str, **options: Any) -> bytes:
        file = io.BytesIO()
        (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
        return file.getvalue()

    return make
