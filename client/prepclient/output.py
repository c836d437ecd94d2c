"""The arrays that a batch is made of, in the library that the user asked for. They share the batch's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from prepclient.checks import choice, invalid
from prepclient.errors import InvalidSpec

Output = Literal["torch", "numpy", "jax"]
Convert = Callable[[torch.Tensor], Any]


def converter(
    output: Output, device: torch.device, dtypes: Sequence[torch.dtype], *, zero_copy: bool
) -> Convert | None:
    """What makes an array of a tensor; None for torch.

    Args:
        output: The library.
        device: Device of the batches.
        dtypes: Element types of the batches' dense fields.
        zero_copy: Batches lend memory.

    Raises:
        InvalidSpec: The library is missing, or has no such arrays.
    """
    choice("output", output, ("torch", "numpy", "jax"))
    if output == "numpy":
        if device.type != "cpu":
            raise invalid("output", output, f"numpy's arrays are in host memory: leave out device = {str(device)!r}")
        if torch.bfloat16 in dtypes:
            raise invalid("output", output, "numpy has no bfloat16: ask for torch.float16 or torch.float32")
        return _read_only if zero_copy else torch.Tensor.numpy
    if output == "jax":
        if zero_copy:
            reason = "jax computes in the background and may read memory that is lent no more: leave out zero_copy"
            raise invalid("output", output, reason)
        return _of_jax()
    return None


def converted(batch: Any, convert: Convert) -> Any:
    """A batch with every tensor converted: a tensor, or tuples, lists and dicts of them."""
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    if isinstance(batch, dict):
        return {name: converted(each, convert) for name, each in batch.items()}
    return type(batch)(converted(each, convert) for each in batch)


def _read_only(tensor: torch.Tensor) -> Any:
    """A view that raises on a write: the ring's memory is mapped read-only, and a write would end the process."""
    array = tensor.numpy()
    array.flags.writeable = False
    return array


def _of_jax() -> Convert:
    try:
        from jax import dlpack
    except ImportError as e:
        text = f"output = 'jax' needs jax, which cannot be imported ({e}): pip install jax, or 'jax[cuda12]' for a GPU"
        raise InvalidSpec(text, "output") from e
    convert: Convert = dlpack.from_dlpack
    return convert
