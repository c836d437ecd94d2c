"""Says what to write instead of a DataLoader's arguments, torchvision's classes, and arguments of earlier releases.

It does not import torchvision: it knows its classes by module and name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prepclient.errors import InvalidSpec

_ARGUMENTS = {
    "num_workers": "`prepserver start --workers N` sets the workers for all jobs of the machine; workers=N starts a "
    "private daemon where none runs, inline=True makes the rows in this process",
    "pin_memory": "leave it out: device='cuda' page-locks the daemon's memory and copies batches ahead",
    "pin_memory_device": "device='cuda:1' names the device to which batches are copied",
    "persistent_workers": "leave it out: the daemon's workers outlive epochs and jobs",
    "prefetch_factor": "prefetch=N counts rows to have ready, not batches; without it, the daemon fills its ring",
    "timeout": "timeout_s= is the longest wait for a batch",
    "generator": "seed= decides the order and the augmentation",
    "worker_init_fn": "workers run none of your code; seed= decides their random numbers",
    "multiprocessing_context": "leave it out: this process starts no workers",
    "collate_fn": "batches are tensors already; fields= chooses their fields, collate='list' makes lists of targets, "
    "device_ops=[MixUp(num_classes)], or CutMix, mixes them, PadTokens(n, trim=True) pads to the longest of a batch",
    "sampler": "shuffle= and seed= decide the order, sharding=Sharding(rank, world_size) the part of it. In place of a "
    "WeightedRandomSampler of classes: Mix([Filter(source, labels=[0]), Filter(source, labels=[1])], weights=[1, 1])",
    "batch_sampler": "batch_size=, shuffle= and order= decide the batches",
    "transform": "pass the list of ops as the second argument",
    "in_order": "leave it out: batches always come in order",
    # keywords of releases before 0.3
    **dict.fromkeys(("rank", "world_size", "num_shards", "shard_index"), "pass it in sharding=Sharding(...)"),
    **dict.fromkeys(("start", "lag"), "pass it in joining=Joining(...)"),
    "join_wait_s": "pass joining=Joining(wait_s=...)",
}

_DATASETS = {
    "ImageFolder": "prepclient.ImageFolder(root)",
    "CocoDetection": "prepclient.Coco(root, annotations)",
    "VOCDetection": "prepclient.Voc(root, split)",
}

_ON_BATCHES = {
    **dict.fromkeys(
        ("ToTensor", "ConvertImageDtype", "ToDtype"),
        "leave it out and pass dtype=torch.float32 to PrepClient, which scales uint8 rows by 1/255; prepclient.ToDtype "
        "stores rows as floats, at four times the memory",
    ),
    "Normalize": "leave it out and pass normalize=(mean, std) to PrepClient; prepclient.Normalize, after "
    "prepclient.ToDtype, stores rows as floats",
    **dict.fromkeys(("MixUp", "CutMix"), "pass device_ops=[prepclient.MixUp(num_classes)], or CutMix"),
}
"""Transforms that are better applied to batches than to samples."""


def refuse_loader_arguments(given: Mapping[str, object]) -> None:
    """Refuses arguments that `PrepClient` does not have.

    Raises:
        InvalidSpec: A DataLoader, its dataset or an earlier release has the argument; the text says what to write
            instead.
        TypeError: It is any other.
    """
    unknown = [name for name in given if name not in _ARGUMENTS]
    if unknown:
        raise TypeError(f"PrepClient.__init__() got an unexpected keyword argument {unknown[0]!r}")
    if given:
        said = "; ".join(f"PrepClient has no {name} ({name} = {given[name]!r}): {_ARGUMENTS[name]}" for name in given)
        raise InvalidSpec(said, next(iter(given)))


def refuse_torchvision(source: object, ops: object) -> None:
    """Refuses a dataset or transform of torchvision, by an `InvalidSpec` that names prepclient's equivalent."""
    if is_of("torchvision", source):
        name = type(source).__name__
        equal = _DATASETS.get(name, "prepclient.FileList(path)")
        raise InvalidSpec(f"source is torchvision's {name}: use {equal} instead", "source")
    if is_of("torchvision", ops):
        raise _refusal("ops", ops)
    if isinstance(ops, Sequence):
        for place, op in enumerate(ops):
            if is_of("torchvision", op):
                raise _refusal(f"pipeline[{place}]", op)


def is_of(library: str, value: object) -> bool:
    """Whether a value is an instance of one of a library's classes."""
    return type(value).__module__.partition(".")[0] == library


def _refusal(field: str, transform: object) -> InvalidSpec:
    name = type(transform).__name__
    translated = "pass prepclient.from_torchvision(transform), which translates it or says why it cannot"
    instead = _ON_BATCHES.get(name, translated)
    return InvalidSpec(f"{field} is torchvision's {name}: {instead}", field)
