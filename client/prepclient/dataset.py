"""The DataLoader's attributes `dataset`, `sampler` and `batch_sampler`, for frameworks and scripts that read them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.utils.data

from prepserver.pipeline.sources import ImageFolder, SourceSpec
from prepserver.pipeline.urls import is_url
from prepserver.protocol.schema import MAX_CLASS_NAMES_BYTES

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Dataset:
    """A client's source as a dataset that has a length and classes, but gives no samples."""

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def __len__(self) -> int:
        return self._client.samples

    def __getitem__(self, index: object) -> Any:
        """Raises TypeError: workers make samples, in the order of the batches."""
        raise TypeError("a PrepClient's dataset gives no single samples: iterate over the PrepClient")

    @property
    def classes(self) -> list[str]:
        """Names of the classes, by label, as an `ImageFolder` has them, or a `FileList` whose labels are words.

        The daemon sends them with the listing, up to 16 KiB. Longer lists of an `ImageFolder` are read from its
        folders by this process.

        Raises:
            AttributeError: The source has no names; or they take more than 16 KiB, and this process does not find the
                folders as they were listed.
        """
        feed = self._client._feed()
        return list(feed.classes or _folder_names(self._client.spec.source, feed.num_classes))

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class, by name; see `classes`."""
        return {name: label for label, name in enumerate(self.classes)}

    def __repr__(self) -> str:
        return repr(self._client.spec.source)


class Sampler:
    """Stands in for a sampler in training loops that call ``loader.sampler.set_epoch(epoch)``."""

    def __init__(self, client: PrepClient) -> None:
        self._client = client

    def __len__(self) -> int:
        """Samples per rank and epoch, rounded up, as in DistributedSampler."""
        samples, shape = self._client.samples, self._client.spec.shape  # to ask for samples may take a rank
        return -(-samples // (shape.world_size * shape.shard.count))

    def set_epoch(self, epoch: int) -> None:
        """See `PrepClient.set_epoch`."""
        self._client.set_epoch(epoch)

    def __iter__(self) -> Any:
        """Raises TypeError: the daemon decides the order."""
        raise TypeError(
            "a PrepClient's samplers give no indices: with fields='dict' each batch has them as 'index'. To resume in "
            "the middle of an epoch use state_dict() and load_state_dict(), not accelerate's skip_first_batches"
        )


class SequentialSampler(Sampler, torch.utils.data.SequentialSampler):
    """As `Sampler`, with `shuffle=False`: Lightning's `overfit_batches` takes no loader with another one."""

    def __init__(self, client: PrepClient) -> None:
        Sampler.__init__(self, client)
        self.data_source = client.dataset


class BatchSampler(Sampler):
    """As `Sampler`, counted in batches."""

    def __len__(self) -> int:
        """See `PrepClient.__len__`."""
        return len(self._client)

    @property
    def sampler(self) -> Sampler:
        """See `PrepClient.sampler`."""
        return self._client.sampler

    @property
    def batch_size(self) -> int:
        """See `PrepClient.batch_size`."""
        return self._client.batch_size

    @property
    def drop_last(self) -> bool:
        """See `PrepClient.drop_last`."""
        return self._client.drop_last


def _folder_names(source: SourceSpec, num_classes: int) -> list[str]:
    """The class names of a local `ImageFolder`; raises `AttributeError` unless its folders are as they were listed."""
    names: list[str] = []
    if isinstance(source, ImageFolder) and not is_url(source.root):
        try:
            with os.scandir(source.root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as e:
            raise AttributeError(f"the class folders of {source} cannot be listed by this process: {e}") from e
        if len(names) != num_classes:
            raise AttributeError(f"{source.root} has {len(names)} class folders, and had {num_classes} when listed")
    if not names:
        raise AttributeError(
            f"the labels of {source} are integers without names, or their names take more than {MAX_CLASS_NAMES_BYTES} "
            f"bytes, the most that a daemon sends, and are no folders on this machine; num_classes is {num_classes}"
        )
    return names
