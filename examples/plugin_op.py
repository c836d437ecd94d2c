"""An op of your own: speckle noise, and a private daemon whose workers do it.

    python examples/plugin_op.py

The same file is script and plug-in: it is imported by its name, so its folder must be one that Python looks in, as the
folder of a script is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prepclient import PluginOp, PrepClient, RandomResizedCrop, SyntheticImages


def speckle(image: np.ndarray[Any, np.dtype[np.uint8]], rng: np.random.Generator, strength: float = 0.1) -> Any:
    """Multiply each pixel by a random factor.

    Args:
        image: (H, W, C), uint8. It may be written to.
        rng: Of this sample, this epoch and this place in the pipeline: the only randomness that an op may use.
        strength: Standard deviation of the factor.

    Returns:
        An image of the same shape and dtype, for nothing else is declared.
    """
    factors = rng.normal(1.0, strength, image.shape[:2])[:, :, None]
    return np.clip(np.rint(image * factors), 0, 255).astype(np.uint8)


prepserver_ops = {"speckle": speckle}
"""What this module offers: the names that specs use."""


def main() -> None:
    """Two epochs of noisy images."""
    ops = [RandomResizedCrop(64), PluginOp("speckle", strength=0.2)]
    train = PrepClient(
        SyntheticImages(64, size=96), ops, batch_size=16, shuffle=True, seed=1, workers=2, plugins="plugin_op"
    )
    with train:
        for epoch in range(2):
            for images, labels in train:
                assert images.shape == (16, 3, 64, 64)
                assert labels.shape == (16,)
            print(f"epoch {epoch}: the last batch has a mean of {images.float().mean():.1f}")


if __name__ == "__main__":
    main()
