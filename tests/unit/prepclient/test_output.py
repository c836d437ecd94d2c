"""Batches as arrays of other libraries: the same memory, and no write to what is lent."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from prepclient import CutMix, InvalidSpec, PrepClient, RandomResizedCrop, SyntheticImages
from tests.support.server import environment
from tests.support.waiting import PATIENCE_S

SOURCE = SyntheticImages(12, size=40)


def client(**options: Any) -> PrepClient:
    return PrepClient(SOURCE, [RandomResizedCrop(16)], **{"batch_size": 6, "inline": True, **options})


def first(**options: Any) -> Any:
    with client(**options) as job:
        return next(iter(job))


@pytest.mark.parametrize("options", [{}, {"views": 2}, {"device_ops": [CutMix(1000)], "dtype": torch.float16}])
def test_numpy_has_the_tensors_of_torch(options: dict[str, Any]) -> None:
    tensors, arrays = (first(output=output, fields="dict", **options) for output in ("torch", "numpy"))
    assert tensors.keys() == arrays.keys()
    for name, tensor in tensors.items():
        pairs = zip(tensor, arrays[name], strict=True) if isinstance(tensor, tuple) else [(tensor, arrays[name])]
        for one, array in pairs:
            assert isinstance(array, np.ndarray)
            assert array.flags.writeable
            assert np.array_equal(one.numpy(), array)
            assert one.numpy().strides == array.strides


def test_lent_arrays_are_read_only() -> None:
    images, _ = first(output="numpy", zero_copy=True)
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "cupy"}, "output = 'cupy'"),
        ({"output": "numpy", "dtype": torch.bfloat16}, "numpy has no bfloat16"),
        ({"output": "jax", "zero_copy": True}, "leave out zero_copy"),
    ],
)
def test_what_no_array_can_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        client(**options)


def test_numpy_is_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(InvalidSpec, match="leave out device = 'cuda'"):
        client(output="numpy", device="cuda")


def test_without_jax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InvalidSpec, match=r"output = 'jax' needs jax.*pip install jax"):
        client(output="jax")


def test_jax_shares_the_memory_of_torch() -> None:
    """In a process of its own: one that has imported jax cannot fork, as other tests do."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    subprocess.run([sys.executable, "-c", JAX], env=environment(), check=True, timeout=PATIENCE_S)


JAX = """
import jax, numpy, torch
from prepclient import PrepClient, RandomResizedCrop, SyntheticImages
from prepclient.form import _of_jax
from tests.support.device_client import DeviceClient

trimmed = torch.arange(24).reshape(2, 12)[:, :5]
assert numpy.array_equal(numpy.asarray(_of_jax()(trimmed)), trimmed.numpy())
source = SyntheticImages(12, size=40)
for kind in (PrepClient, DeviceClient):
    found = []
    for output in ("torch", "jax"):
        with kind(source, [RandomResizedCrop(16)], batch_size=6, inline=True, output=output) as job:
            images, labels = next(iter(job))
            if kind is DeviceClient and output == "torch":
                job.fake.finish_all()
            found.append((images, labels))
    (images, labels), (their_images, their_labels) = found
    assert isinstance(their_images, jax.Array) and isinstance(their_labels, jax.Array)
    assert torch.utils.dlpack.from_dlpack(their_images).stride() == images.stride()
    if kind is PrepClient:
        assert numpy.array_equal(numpy.asarray(their_images), images.numpy())
        assert numpy.array_equal(numpy.asarray(their_labels), labels.numpy())
"""
