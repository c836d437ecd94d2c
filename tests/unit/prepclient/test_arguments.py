"""What people bring along from a DataLoader and torchvision is taken, or the error says what to write instead."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

import prepclient
from prepclient import (
    CenterCrop,
    InvalidSpec,
    Joining,
    Normalize,
    PrepClient,
    PrepClientError,
    RandomResizedCrop,
    Resize,
    Sharding,
    SpecError,
    SyntheticImages,
    ToDtype,
)

SOURCE = SyntheticImages(8, 16)
SIZED = RandomResizedCrop(8)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BYTES = ((123.675, 116.28, 103.53), (58.4, 57.1, 57.4))


class InterpolationMode(Enum):
    """torchvision's, as far as it matters."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


def of_torchvision(name: str, module: str = "torchvision.transforms.v2._misc") -> Any:
    """An object that looks like torchvision's."""
    return type(name, (), {"__module__": module})()


def client(ops: Any = (SIZED,), source: Any = SOURCE, **arguments: Any) -> PrepClient:
    return PrepClient(source, ops, inline=True, **arguments)


@pytest.mark.parametrize("of", [np.int64, np.uint8, torch.tensor])
def test_any_integer_type_is_an_integer(of: Any) -> None:
    numbered = client(
        [RandomResizedCrop(of(8)), Resize((of(8), 8)), CenterCrop([of(8)])],
        SyntheticImages(of(8), of(16), of(3), of(5)),
        batch_size=of(3), seed=of(7), views=of(1), prefetch=of(16), sharding=Sharding(of(0), of(1), of(1)),
    )  # fmt: skip
    plain = client(
        [RandomResizedCrop(8), Resize((8, 8)), CenterCrop([8])], SyntheticImages(8, 16, 3, 5), batch_size=3, seed=7
    )
    numbered.set_epoch(of(0))
    assert numbered.spec.digest == plain.spec.digest
    assert numbered.spec.source.to_wire() == plain.spec.source.to_wire()
    assert type(numbered.spec.shape.batch_size) is int
    for a, b in zip(numbered, plain, strict=True):
        assert torch.equal(a[0], b[0])


@pytest.mark.parametrize("value", [True, 4.0, "4", None, np.float64(4), torch.tensor(4.0)])
def test_other_types_are_no_integers(value: Any) -> None:
    with pytest.raises(InvalidSpec, match="batch_size = "):
        client(batch_size=value)


def test_numbers_of_numpy_are_numbers() -> None:
    scale: Any = (np.float32(0.5), np.float64(1))
    assert RandomResizedCrop(8, scale=scale) == RandomResizedCrop(8, scale=(0.5, 1.0))


@pytest.mark.parametrize("op", [RandomResizedCrop, Resize])
def test_resizing_is_asked_for_as_in_torchvision(op: Any) -> None:
    assert op(8, interpolation=InterpolationMode.BICUBIC, antialias=True) == op(8, interpolation="bicubic")
    with pytest.raises(SpecError, match=r"nearest.*'bilinear' or 'bicubic'"):
        op(8, interpolation=InterpolationMode.NEAREST)
    with pytest.raises(SpecError, match="antialias = False: must be True"):
        op(8, antialias=False)


def test_arguments_come_in_the_order_of_torchvision() -> None:
    assert Resize(8, InterpolationMode.BICUBIC, 16, True) == Resize(8, max_size=16, interpolation="bicubic")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("RandomResizedCrop", "from_torchvision"),
        ("ToTensor", "dtype=torch.float32"), ("ToDtype", "dtype=torch.float32"), ("ToImage", "from_torchvision"),
        ("Normalize", r"normalize=\(mean, std\)"), ("Compose", "from_torchvision"),
        ("LinearTransformation", "from_torchvision"), ("MixUp", "device_ops"), ("Unknown", "or says why it cannot"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("module", ["torchvision.transforms.v2._misc", "torchvision.transforms.transforms"])
def test_a_torchvision_transform_names_its_equivalent(name: str, instead: str, module: str) -> None:
    transform = of_torchvision(name, module)
    with pytest.raises(InvalidSpec, match=rf"pipeline\[1\] is torchvision's {name}: .*{instead}"):
        client([SIZED, transform])
    with pytest.raises(InvalidSpec, match=f"ops is torchvision's {name}: .*{instead}"):
        client(transform)


def test_a_torchvision_dataset_names_its_equivalent() -> None:
    with pytest.raises(InvalidSpec, match=r"prepclient\.ImageFolder\(root\)"):
        client(source=of_torchvision("ImageFolder", "torchvision.datasets.folder"))


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ({"num_workers": 8}, "prepserver start --workers"), ({"pin_memory": True}, "device='cuda'"),
        ({"persistent_workers": True}, "outlive epochs"), ({"prefetch_factor": 2}, "prefetch="),
        ({"collate_fn": None}, r"fields=.*device_ops=\[MixUp\(num_classes\)\], or CutMix"),
        ({"sampler": None}, "shuffle="), ({"timeout": 0}, "timeout_s="),
        ({"rank": 1}, "sharding=Sharding"), ({"join_wait_s": 5}, "wait_s="), ({"lag": "wait"}, "joining=Joining"),
    ],
)  # fmt: skip
def test_an_argument_it_does_not_have_says_what_to_write(given: dict[str, Any], instead: str) -> None:
    with pytest.raises(InvalidSpec, match=instead) as e:
        client(**given)
    assert e.value.field == next(iter(given))


def test_all_arguments_of_a_dataloader_are_named_at_once() -> None:
    with pytest.raises(InvalidSpec) as e:
        client(num_workers=4, pin_memory=True, persistent_workers=True)
    for word in ("num_workers = 4", "pin_memory = True", "persistent_workers = True", "device='cuda'"):
        assert word in str(e.value)
    with pytest.raises(TypeError, match="'batchsize'"):
        client(num_workers=4, batchsize=3)


def test_skip_is_refused_and_the_error_names_what_to_use() -> None:
    with pytest.raises(InvalidSpec, match=r"lag = 'skip' .* With 'detach' the job loses nothing; 'auto'") as e:
        client(joining=Joining(lag="skip"))  # type: ignore[arg-type]
    assert e.value.field == "lag"
    with pytest.raises(InvalidSpec, match=r"lag = 5 is not one of 'auto', 'wait', 'detach'$"):
        client(joining=Joining(lag=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["drop_last", "zero_copy", "inline"])
def test_flags_are_true_or_false(name: str) -> None:
    wrong: list[Any] = ["no", "False", None, 2, 0.5, []]
    for value in wrong:
        with pytest.raises(InvalidSpec, match=f"{name} = .*: True or False"):
            PrepClient(SOURCE, [SIZED], **{name: value})
    right: list[Any] = [True, 1, np.True_]
    for value in right:
        PrepClient(SOURCE, [SIZED], **{name: value})
    assert client(drop_last=np.True_).drop_last is True
    assert client(shuffle=np.True_).spec == client(shuffle=True).spec


@pytest.mark.parametrize("name", ["timeout_s", "connect_s", "reconnect_s"])
def test_times_are_seconds(name: str) -> None:
    for value in (None, "30", -1, float("nan"), float("inf")):
        with pytest.raises(InvalidSpec, match=rf"{name} = .*: must (be|lie) ") as e:
            client(**{name: value})
        assert e.value.field == name
    client(**{name: np.float32(1.5)})


def test_a_runtime_directory_is_a_path() -> None:
    with pytest.raises(InvalidSpec, match="runtime_dir = 3: a path"):
        client(runtime_dir=3)


@pytest.mark.parametrize("cache", [True, 3, "memory"])
def test_what_is_no_cache_says_what_to_write(cache: Any) -> None:
    with pytest.raises(InvalidSpec, match=f"cache = '?{cache}'?: 'encoded', 'decoded', the path of a folder"):
        client(cache=cache)


@pytest.mark.parametrize(
    ("op", "instead"),
    [
        (CenterCrop, r"is a class: write CenterCrop\(\.\.\.\)"), (lambda image: image, "apply it to the batches"),
        (torch.nn.Identity(), "apply it to the batches, or choose among AugMix, AutoAugment, CenterCrop"),
    ],
)  # fmt: skip
def test_what_is_no_op_says_what_to_write(op: Any, instead: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"pipeline\[1\] = .*{instead}"):
        client([SIZED, op])


def test_a_dataset_of_ones_own_says_how_it_becomes_a_plugin() -> None:
    source: Any = torch.utils.data.TensorDataset(torch.zeros(3))
    with pytest.raises(
        InvalidSpec, match=r'Plugin\("TensorDataset", .*plugins="torch.utils.data.dataset:TensorDataset"'
    ):
        PrepClient(source, [], batch_size=1)
    for other in ("/data/train", ["/data/train"], np.zeros(3), 3):
        with pytest.raises(InvalidSpec, match="a source, such as ImageFolder"):
            PrepClient(other, [], batch_size=1)  # type: ignore[arg-type]


def test_any_other_argument_is_unexpected_as_ever() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        client(batchsize=3)


def test_inline_has_no_workers() -> None:
    with pytest.raises(InvalidSpec, match="workers = 2 with inline = True"):
        client(workers=2)


def test_normalising_twice_is_refused() -> None:
    ops = [SIZED, ToDtype("float32", scale=True), Normalize(MEAN, STD)]
    with pytest.raises(InvalidSpec, match="ops or device_ops have a Normalize already"):
        client(ops, normalize=(MEAN, STD))
    client(ops)
    client(ops[:2], normalize=(MEAN, STD))


def test_means_of_bytes_are_refused_for_values_up_to_one() -> None:
    with pytest.raises(InvalidSpec, match=r"normalize = .*divide means and stds by 255"):
        client(normalize=BYTES)
    with pytest.raises(InvalidSpec, match="divide means and stds by 255"):
        client([SIZED, ToDtype("float32", scale=True)], normalize=BYTES)
    with pytest.raises(InvalidSpec, match=r"pipeline\[2\]\.mean = .*divide means and stds by 255"):
        client([SIZED, ToDtype("float32", scale=True), Normalize(*BYTES)])
    client([SIZED, ToDtype("float32")], normalize=BYTES)
    client([SIZED, ToDtype("float32"), Normalize(*BYTES)])
    client([SIZED, ToDtype("float32"), ToDtype("float16", scale=True), Normalize(*BYTES)])  # floats are not scaled


def test_an_error_of_an_op_is_an_error_of_the_client() -> None:
    with pytest.raises(PrepClientError):
        RandomResizedCrop(0)
    assert issubclass(SpecError, PrepClientError)
    assert issubclass(SpecError, ValueError)
    assert "SpecError" in prepclient.__all__
