"""A training loop in JAX: batches arrive as JAX arrays, already mixed and normalized.

    pip install jax
    python examples/jax_loop.py

Replace `SyntheticImages` by your own dataset, such as `ImageFolder("/data/train")`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from prepclient import MixUp, PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages, ToLayout

CLASSES = 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICE = "cuda" if jax.default_backend() == "gpu" and torch.cuda.is_available() else "cpu"

Params = dict[str, jax.Array]


def loss_of(params: Params, images: jax.Array, weights: jax.Array) -> jax.Array:
    """Cross entropy of a small convolutional network, for soft labels."""
    features = jax.lax.conv_general_dilated(
        images, params["filters"], (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    logits = jax.nn.relu(features).mean((1, 2)) @ params["classes"]
    return -(weights * jax.nn.log_softmax(logits)).sum(1).mean()


@jax.jit
def step(params: Params, images: jax.Array, weights: jax.Array) -> tuple[Params, jax.Array]:
    """One step of gradient descent."""
    loss, slopes = jax.value_and_grad(loss_of)(params, images, weights)
    return jax.tree.map(lambda value, slope: value - 0.1 * slope, params, slopes), loss


def main() -> None:
    """Two epochs."""
    filters = 0.1 * jax.random.normal(jax.random.key(0), (3, 3, 3, 8))
    params = {"filters": filters, "classes": jnp.zeros((8, CLASSES))}
    train = PrepClient(
        SyntheticImages(256, size=96), [RandomResizedCrop(64), RandomHorizontalFlip()], batch_size=32, shuffle=True,
        drop_last=True, device_ops=[MixUp(CLASSES, alpha=0.2), ToLayout("HWC")], normalize=(MEAN, STD), device=DEVICE,
        output="jax", job="jax", workers=2,
    )  # fmt: skip
    with train:
        for epoch in range(2):
            for images, weights in train:
                params, loss = step(params, images, weights)
            print(f"epoch {epoch}: {images.shape} on {images.device}, loss {loss:.2f}")


if __name__ == "__main__":
    main()
