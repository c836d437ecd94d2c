"""An op of your own: speckle noise, applied by the workers of a private daemon.

    python examples/plugin_op.py

If a shared daemon runs, it makes the rows, and only its configuration can name plug-ins. Then begin the line with
PREPSERVER_RUNTIME_DIR=/tmp/none, or start that daemon with --plugin.

This file is both the script and the plug-in. The plug-in is imported by its name, so its folder must be on Python's
path, as the folder of a script is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prepclient import PluginOp, PrepClient, RandomResizedCrop, SyntheticImages


def speckle(image: np.ndarray[Any, np.dtype[np.uint8]], rng: np.random.Generator, strength: float = 0.1) -> Any:
    """Multiplies each pixel by a random factor.

    Args:
        image: (H, W, C), uint8. It may be written to.
        rng: The generator for this sample, epoch and place in the pipeline. An op may use no other randomness.
        strength: Standard deviation of the factor.

    Returns:
        An image of the same shape and dtype, because the op declares no other.
    """
    factors = rng.normal(1.0, strength, image.shape[:2])[:, :, None]
    return np.clip(np.rint(image * factors), 0, 255).astype(np.uint8)


prepserver_ops = {"speckle": speckle}
"""What this module offers, by the names that specs use."""


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
