"""tf.data: only the crop is decoded (decode_and_crop_jpeg), by the fast inverse DCT and plain upsampling.

One process, as many threads as there are workers; files are shuffled anew in each round over them, and the
iterator never ends (a new one for each epoch would stand idle for half a second).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

from bench.harness.contender import RATIO, SCALE, SIZE
from bench.peers.contenders.endless import Endless
from bench.peers.contenders.lists import listed

_TRIES = 10


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return Endless(Batches(pipeline(config)), len(listed(config["list"])) // config["batch"])


class Batches:
    """numpy arrays over the tensors' own memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset.as_numpy_iterator())


def pipeline(config: dict[str, Any]) -> Any:
    """An endless tf.data.Dataset of (images, labels)."""
    files, labels = zip(*listed(config["list"]), strict=True)
    antialias = bool(config.get("antialias"))

    def row(file: Any, label: Any) -> Any:
        data = tf.io.read_file(file)
        shape = tf.io.extract_jpeg_shape(data)
        window = _draw_crop(shape[0], shape[1])
        image = tf.io.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False)
        image = tf.image.resize(image, [SIZE, SIZE], method="bilinear", antialias=antialias)
        return tf.image.random_flip_left_right(tf.cast(image + 0.5, tf.uint8)), label

    dataset = tf.data.Dataset.from_tensor_slices((list(files), list(labels)))
    dataset = dataset.shuffle(len(files), seed=config["seed"], reshuffle_each_iteration=True).repeat()
    dataset = dataset.map(row, num_parallel_calls=config["workers"], deterministic=False)
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = config["workers"]
    return dataset.batch(config["batch"], drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options)


def _draw_crop(height: Any, width: Any) -> Any:
    """torchvision's law, as `crops.draw_crop`: all tries are drawn at once, the first that fits is taken."""
    h, w = tf.cast(height, tf.float32), tf.cast(width, tf.float32)
    target = h * w * tf.random.uniform([_TRIES], *SCALE)
    aspect = tf.exp(tf.random.uniform([_TRIES], math.log(RATIO[0]), math.log(RATIO[1])))
    widths = tf.cast(tf.round(tf.sqrt(target * aspect)), tf.int32)
    heights = tf.cast(tf.round(tf.sqrt(target / aspect)), tf.int32)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)

    def drawn() -> Any:
        at = tf.argmax(tf.cast(fits, tf.int32))
        ch, cw = heights[at], widths[at]
        top = tf.random.uniform([], 0, height - ch + 1, tf.int32)
        left = tf.random.uniform([], 0, width - cw + 1, tf.int32)
        return tf.stack([top, left, ch, cw])

    def central() -> Any:
        cw = tf.minimum(width, tf.cast(tf.round(h * RATIO[1]), tf.int32))
        ch = tf.minimum(height, tf.cast(tf.round(w / RATIO[0]), tf.int32))
        return tf.stack([(height - ch) // 2, (width - cw) // 2, ch, cw])

    return tf.cond(tf.reduce_any(fits), drawn, central)
