"""Plug-ins are loaded by the names that are given, found by the names that specs have, and held to their word."""

from __future__ import annotations

import copy
import importlib
import io
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Picture

from prepclient import PrepClient
from prepserver import plugins
from prepserver.pipeline import kinds
from prepserver.pipeline.ops import PluginOp
from prepserver.pipeline.random_words import SampleKey
from prepserver.pipeline.sources import Plugin, source_from_wire
from prepserver.plugin_values import conform
from prepserver.plugins import PluginError
from prepserver.source import SampleError, SourceError, build_index, open_source
from prepserver.source.readers.plugin import PluginSource
from prepserver.transform.decode import Encoded
from prepserver.transform.kinds.mask import MaskFollower
from prepserver.transform.moves import COLUMNS, Mirror
from prepserver.transform.ops.plugin_op import PluginOpStage, _generator
from prepserver.transform.stage import Draws


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes modules that can be imported for one test, in a process that has loaded nothing."""
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_lists_its_plugins_and_objects_are_told_apart(module: Callable[[str, str], None]) -> None:
    code = (
        "class Mine:\n    def __getitem__(self, index): ...\n"
        "def op(x, rng): ...\nclass Inner:\n    @staticmethod\n    def op2(x, rng): ...\n"
        "def made(): ...\nprepserver_ops = {'a': op}\nprepserver_sources = {'b': made, 'a': Mine}\n"
    )
    module("listed", code)
    assert {each[:2] for each in plugins.load(["listed"])} == {("op", "a"), ("source", "b"), ("source", "a")}
    loaded = plugins.load(["listed:Mine", "listed:Inner.op2", "listed"])
    assert {each[:2] for each in loaded} >= {("source", "Mine"), ("op", "op2")}
    assert len({each.code for each in loaded}) == 1
    assert set(plugins.codes()) == {each[:2] for each in loaded}
    code = plugins.codes()["op", "a"]
    assert plugins.find("op", "a", code) is plugins.find("op", "a", "")


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            "import nothing_of_the_kind",
            "broken",
            r"'broken' cannot be imported: ModuleNotFoundError: .*broken.py, line 1\)",
        ),
        ("x =", "broken", "SyntaxError"),
        ("raise SystemExit(3)", "broken", "SystemExit: 3"),
        ("", "broken", "module broken lists no plug-ins"),
        ("prepserver_ops = [1]", "broken", "module broken lists no plug-ins"),
        ("", "broken:x", "module broken has no x"),
        ("x = 3", "broken:x", "'x' is not a valid op: it must be callable"),
        ("def x(): ...\nprepserver_ops = {'y' * 65: x}", "broken", "with a name of 1 to 64"),
        ("", "__main__:x", "what a notebook defines has no file to import"),
        ("", "nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("", ".relative", "TypeError"),
        ("prepserver_ops = {str(n): print for n in range(65)}", "broken", "65 plug-ins are more than 64"),
    ],
)
def test_what_cannot_be_loaded_is_named(module: Callable[[str, str], None], text: str, name: str, said: str) -> None:
    module("broken", text)
    with pytest.raises(PluginError, match=said):
        plugins.load([name])


@pytest.mark.parametrize("name", ["nowhere_at_all", "__main__:x", ".relative"])
def test_a_mistyped_name_needs_no_traceback(name: str) -> None:
    with pytest.raises(PluginError) as raised:
        plugins.load([name])
    assert raised.value.__cause__ is None


def test_two_plugins_have_two_names(module: Callable[[str, str], None]) -> None:
    module("one", "def x(): ...\n")
    module("two", "def x(): ...\n")
    with pytest.raises(PluginError, match=r"two op plug-ins have the name 'x': .*one\.py and two"):
        plugins.load(["one:x", "two:x"])
    module("three", "def y(): ...\nclass In:\n    def y(): ...\n")
    with pytest.raises(PluginError, match=r"two op plug-ins have the name 'y'"):
        plugins.load(["three:y", "three:In.y"])


def test_a_reloaded_module_takes_the_place_of_the_old_one(module: Callable[[str, str], None]) -> None:
    """As a notebook does it."""
    module("again", "def x(): return 1\n")
    (old,) = plugins.load(["again:x"])
    module("again", "def x(): return 22\n")
    reloaded = importlib.reload(importlib.import_module("again"))
    (new,) = plugins.load(["again:x"])
    assert new.code != old.code
    assert plugins.find("op", "x", new.code) is reloaded.x
    assert plugins.find("op", "x", old.code) is old.value  # for clients that were made before
    assert plugins.load(["again:x"]) == [new]


def test_new_code_in_a_function_changes_the_digest(module: Callable[[str, str], None]) -> None:
    """IPython's autoreload puts it into the function that is there."""
    module("patched", "def x(): return 1\n")
    (old,) = plugins.load(["patched:x"])
    module("patched", "def x(): return 333\n")
    old.value.__code__ = compile("lambda: 333", "patched.py", "eval").co_consts[0]
    (new,) = plugins.load(["patched:x"])
    assert new.value() == 333
    assert new.code != old.code


def test_the_digest_covers_what_is_imported_of_the_package(
    module: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the top-level package, by the plug-in's module or what it imports, whatever else this process imports."""

    def code(helper: str, other: str) -> str:
        monkeypatch.setattr(plugins, "_loaded", {})
        for name in [name for name in sys.modules if name.startswith("whole")]:
            del sys.modules[name]
        module("whole.__init__", "")
        module("whole.data", "from .inner import x\nprepserver_ops = {'x': x}\n")
        module("whole.inner.__init__", "from ..helper import x\n")
        module("whole.helper", helper)
        module("whole.train", other)
        importlib.import_module("whole.train")
        return plugins.load(["whole.data"])[0].code

    first = code("def x(): ...\n", "")
    assert code("def x(): ...\n", "y = 1\n") == first
    assert code("def x(): ...\n", "import whole.helper\n") == first
    assert code("def x(): ...  # more\n", "") != first
    assert code("import whole.train\ndef x(): ...\n", "") != code("import whole.train\ndef x(): ...\n", "y = 1\n")


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (3, kinds.Label(), np.int64(3)),
        (np.array([3], np.uint8), kinds.Label(), np.int64(3)),
        (torch.tensor(3), kinds.Label(), np.int64(3)),
        (3, kinds.Scalar("float32"), np.float32(3)),
        (0.5, kinds.Scalar("float16"), np.float16(0.5)),
        (True, kinds.Label(), np.int64(1)),
        (False, kinds.Scalar("bool"), np.bool_(False)),
        (torch.tensor(True), kinds.Scalar("bool"), np.bool_(True)),
        (np.bool_(True), kinds.Scalar("float32"), np.float32(1)),
        ([1, 2], kinds.Tokens(2), np.array([1, 2])),
        ([], kinds.Tokens(), np.zeros(0, np.int64)),
        ([1.5, 2.5], kinds.Array((2,)), np.array([1.5, 2.5], np.float32)),
        ((1, True), kinds.Array((2,), "float16"), np.array([1, 1], np.float16)),
        ([-math.inf], kinds.Array((1,)), np.array([-math.inf], np.float32)),
        ([[1, 255]], kinds.Array((1, 2), "uint8"), np.array([[1, 255]], np.uint8)),
        (torch.ones(2, 3), kinds.Array((2, 3)), np.ones((2, 3), np.float32)),
        (np.ones((4, 6), np.float32)[::-2, ::2], kinds.Array(), np.ones((2, 3), np.float32)),
        ("a", kinds.Text(), "a"),
        (memoryview(b"ab"), kinds.Bytes(), b"ab"),
    ],
)
def test_values_of_their_kind_are_taken(value: Any, kind: kinds.Kind, result: Any) -> None:
    taken = conform("op 'x'", value, kind)
    assert np.array_equal(taken, result)
    if isinstance(taken, np.ndarray):
        assert taken.dtype == np.asarray(result).dtype
        assert taken.flags.c_contiguous
        assert taken.flags.writeable


@pytest.mark.parametrize(
    ("value", "kind", "given"),
    [
        (2**70, kinds.Label(), "int"),
        (1.5, kinds.Label(), "float"),
        ("3", kinds.Label(), "str"),
        ([1, 2], kinds.Label(), "list"),
        (300, kinds.Scalar("uint8"), "int"),
        (np.ones(3), kinds.Array((3,)), r'ndarray .* dtype float64: add .astype\("float32"\), or declare float64$'),
        (np.ones(3, ">f4"), kinds.Array((3,)), r'ndarray .* dtype >f4: add .astype\("float32"\)$'),
        (np.ones(3, "int32"), kinds.Array((3,), "int64"), r'ndarray .*: add .astype\("int64"\), or declare int32$'),
        (torch.ones(3).int(), kinds.Tokens(), r"Tensor .* torch.int32: add .to\(torch.int64\)$"),
        (np.ones(3), kinds.Array((3,), "int64"), "ndarray .* dtype float64$"),
        (torch.ones(2), kinds.Array((3,)), r"Tensor of shape \(2,\) and dtype torch.float32$"),
        ([[1], [2, 3]], kinds.Array((3,)), "list$"),
        ([70000], kinds.Array((1,), "float16"), "list"),
        ([0.0, 1e39], kinds.Array((2,)), "list"),
        (70000, kinds.Scalar("float16"), "int"),
        (np.ones((1, 2), np.int64), kinds.Tokens(), r"ndarray of shape \(1, 2\)"),
        ([1], kinds.Tokens(2), r"list of shape \(1,\) and dtype int64"),
        ([1, 256], kinds.Array((2,), "uint8"), "list"),
        ([1, 0.5], kinds.Array((2,), "int64"), r"list of shape \(2,\) and dtype float64"),
        ([0, 2], kinds.Array((2,), "bool"), "list"),
        (np.timedelta64(3, "s"), kinds.Scalar("int64"), "timedelta64"),
        (b"a", kinds.Text(), "bytes"),
        ("a", kinds.Bytes(), "str"),
        (None, kinds.Boxes(), "NoneType"),
    ],
)
def test_values_of_another_kind_are_told(value: Any, kind: kinds.Kind, given: str) -> None:
    with pytest.raises(PluginError, match=rf"^op 'x' declares {type(kind).__name__}\(.* and gives {given}"):
        conform("op 'x'", value, kind)


def source(values: list[Any], kind: kinds.Kind) -> PluginSource:
    return PluginSource(Plugin("mine", columns={"it": kind}), values, len(values), [])


GREY = np.arange(6, dtype=np.uint8).reshape(2, 3)
COLOUR = np.stack([GREY, GREY + 10, GREY + 20], 2)
WIDE = GREY * np.uint16(12200)


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        (COLOUR, kinds.Image(), COLOUR),
        (COLOUR[::-1], kinds.Image(size=(2, 3)), COLOUR[::-1]),
        (torch.from_numpy(COLOUR).permute(2, 0, 1), kinds.Image(), COLOUR),
        (Picture.fromarray(COLOUR), kinds.Image(), COLOUR),
        (GREY, kinds.Image(), np.stack([GREY] * 3, 2)),
        (GREY[..., None], kinds.Image(), np.stack([GREY] * 3, 2)),
        (torch.from_numpy(GREY)[None], kinds.Image(), np.stack([GREY] * 3, 2)),
        (Picture.fromarray(GREY), kinds.Image(), np.stack([GREY] * 3, 2)),
        (GREY, kinds.Mask(), GREY),
        (torch.from_numpy(GREY)[None], kinds.Mask((2, 3)), GREY),
        (Picture.fromarray(GREY), kinds.Mask(), GREY),
        (Picture.fromarray(GREY > 2), kinds.Mask(), GREY > 2),
        (WIDE, kinds.Mask(dtype="uint16"), WIDE),
        (Picture.fromarray(WIDE), kinds.Mask(dtype="uint16"), WIDE),
        (Picture.fromarray(WIDE.astype(np.int32)), kinds.Mask(dtype="uint16"), WIDE),
        (Picture.fromarray(GREY), kinds.Mask(dtype="uint16"), GREY),
    ],
)
def test_pixels_are_taken_in_every_usual_form(value: Any, kind: kinds.Kind, result: Any) -> None:
    taken = source([(value,)], kind).read(0)["it"]
    assert np.array_equal(taken, result)
    assert taken.flags.c_contiguous
    assert taken.flags.writeable


@pytest.mark.parametrize(
    ("value", "kind", "given"),
    [
        (COLOUR.astype(np.float32), kinds.Image(), r"ndarray of shape \(2, 3, 3\) and dtype float32"),
        (COLOUR, kinds.Image(size=(3, 2)), "Image of 3 x 2 pixels and gives ndarray"),
        (COLOUR, kinds.Mask(), "Mask of any size and gives ndarray"),
        (COLOUR[:, :, :2], kinds.Image(), "ndarray"),
        (COLOUR[:0], kinds.Image(), "ndarray"),
        (GREY[0], kinds.Image(), "ndarray"),
        (b"bytes", kinds.Image(size=(2, 3)), "bytes"),
        (
            "name.jpg",
            kinds.Image(),
            r"str\. Give a PIL image, a uint8 array \(H, W, C\) or tensor \(C, H, W\), or bytes",
        ),
        ("name.png", kinds.Mask(), r"str\. Give a PIL image, a uint8 array or tensor \(H, W\), or bytes of a file$"),
        (Picture.fromarray(GREY), kinds.Image((3, 2)), "a PIL image of mode L and 2 x 3 pixels"),
        (
            Picture.fromarray(COLOUR),
            kinds.Mask(),
            r"a PIL image: it must have one number of 8 bits .*, and this is RGB$",
        ),
        (Picture.fromarray(WIDE), kinds.Mask(), r'this is I;16: declare dtype="uint16"'),
        (WIDE, kinds.Mask(), r'Give a uint8 array or tensor \(H, W\), or declare kinds.Mask\(dtype="uint16"\)$'),
        (Picture.fromarray(WIDE - np.int32(5)), kinds.Mask(dtype="uint16"), r"go from -5 to 60995, beyond 0 to 65535"),
        (Picture.fromarray(COLOUR), kinds.Mask(dtype="uint16"), r"8 or 16 bits for each pixel .*, and this is RGB$"),
        (WIDE, kinds.Image(), r'Give a uint8 array .*, or declare kinds\.Image\(channels=1, dtype="uint16"\)$'),
        (torch.zeros(1, 2, 3), kinds.Mask(), r'tensor \(H, W\), or declare kinds\.Array\(\(1, 2, 3\), "float32"\)$'),
        (Picture.fromarray(np.float32(GREY)), kinds.Image(), r'a PIL image: its pixels are floats .*\), "float32"\)'),
        (
            Picture.fromarray(WIDE - np.int32(5)),
            kinds.Image(),
            r"a PIL image: its pixels \(mode I\) go from -5 to 60995",
        ),
    ],
)
def test_pixels_of_another_form_are_told(value: Any, kind: kinds.Kind, given: str) -> None:
    with pytest.raises(PluginError, match=f"source plug-in 'mine', column it, declares .*{given}"):
        source([(value,)], kind).read(0)


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_picture_of_16_bits_has_the_pixels_of_its_file(dtype: str) -> None:
    picture, file = Picture.fromarray(WIDE.astype(dtype)), io.BytesIO()
    picture.save(file, "TIFF")
    taken = source([(picture,)], kinds.Image()).read(0)["it"]
    assert np.array_equal(taken, Encoded(file.getvalue()).tolerant())
    assert np.array_equal(taken[:, :, 0], WIDE >> 8)


def test_a_picture_that_turns_out_to_be_broken_is_a_bad_sample() -> None:
    file = io.BytesIO()
    Picture.fromarray(COLOUR.repeat(99, 0)).save(file, "TIFF")
    broken = Picture.open(io.BytesIO(file.getvalue()[:-200]))
    with pytest.raises(SampleError, match="column it, gives a PIL image that cannot be decoded: "):
        source([(broken,)], kinds.Image()).read(0)


def test_bytes_of_a_file_are_left_to_the_decoders() -> None:
    assert source([{"it": bytearray(b"file"), "more": 1}], kinds.Image()).read(0) == {"it": b"file"}


@pytest.mark.parametrize("sample", [(1, 2), [], {"other": 1}, 3, None])
def test_a_sample_without_its_columns_is_told(sample: Any) -> None:
    with pytest.raises(PluginError, match="source plug-in 'mine' declares the columns it and gives "):
        source([sample], kinds.Label()).read(0)


def test_a_source_knows_its_range_its_names_and_its_labels() -> None:
    made = PluginSource(Plugin("mine", columns={"it": kinds.Label()}), [(4,), (5,)], 2, ["a"])
    assert (len(made), made.name(1), made.label(1), made.classes()) == (2, "mine[1]", 5, ["a"])
    with pytest.raises(IndexError):
        made.read(2)


class Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("x"), PluginError),
        (FileNotFoundError(2, "x"), SampleError),
        (OSError(24, "no descriptors"), OSError),
        (MemoryError(), PluginError),
    ],
)
def test_what_a_dataset_raises_belongs_to_whom_it_concerns(error: BaseException, raised: type[Exception]) -> None:
    with pytest.raises(raised) as caught:
        PluginSource(Plugin("mine", columns={"it": kinds.Label()}), Raising(error), 1, []).read(0)
    assert PluginSource(Plugin("mine", columns={"it": kinds.Text()}), Raising(error), 1, []).label(0) == 0
    assert type(caught.value) is raised


def test_generators_are_left_as_they_were() -> None:
    class Drawing(Raising):
        def __getitem__(self, index: int) -> Any:
            return (np.array([random.random(), np.random.rand(), torch.rand(()).item()]),)

    made = PluginSource(Plugin("m", columns={"it": kinds.Array((3,), "float32")}), Drawing(ValueError()), 9, [])
    numpys: Any = np.random.get_state()
    states = random.getstate(), numpys[1], torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(PluginError, match="float64"):
            made.read(3)
    assert random.getstate() == states[0]
    numpys = np.random.get_state()
    assert np.array_equal(numpys[1], states[1])
    assert torch.equal(torch.get_rng_state(), states[2])


def test_global_generators_give_an_op_what_its_own_gives(module: Callable[[str, str], None]) -> None:
    """Of one sample always the same, whichever worker makes it; another one of the next."""
    module(
        "drawing",
        "import random, numpy, torch\n"
        "def drawn(x, rng): return numpy.array([random.random(), numpy.random.rand(), torch.rand(()).item()])\n"
        "def block(x, rngs): return [drawn(each, None) for each in x]\n"
        "prepserver_ops = {'drawn': drawn, 'block': block}",
    )
    plugins.load(["drawing"])
    state = random.getstate()
    returns = kinds.Array((3,), "float64")
    for name, is_block in (("drawn", False), ("block", True)):
        stage = PluginOpStage(PluginOp(name, column="x", returns=returns, block=is_block), 1)

        def made(number: int, stage: PluginOpStage = stage) -> list[float]:
            values: dict[str, Any] = {"x": np.zeros(3)}
            draws = Draws(SampleKey(1, 2, number), 1, 0)
            stage.make_block([values], {"x": returns}, [draws])
            return values["x"].tolist()  # type: ignore[no-any-return]

        assert made(5) == made(5) != made(6)
        assert len(set(made(5))) == 3
    assert random.getstate() == state


@given(st.integers(0, 2**128 - 1))
def test_a_generator_is_that_of_philox_with_the_key(key: int) -> None:
    made, numpys = (np.random.Generator(each) for each in (_generator(key).bit_generator, np.random.Philox(key=key)))
    assert repr(made.bit_generator.state) == repr(numpys.bit_generator.state)
    assert np.array_equal(made.integers(2**40, size=9), numpys.integers(2**40, size=9))
    assert len({each.normal() for each in (copy.deepcopy(made), made, numpys)}) == 1
    for each in (made, numpys):
        with pytest.raises(TypeError, match="does not implement spawning"):
            each.spawn(1)


def test_global_generators_are_seeded_by_sample_alone(
    module: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever other plug-ins have drawn before; and those of this process are as they were, also after an error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module(
        "draws_much",
        "import random, numpy, torch\n"
        "def three(): return [random.random(), numpy.random.rand(), torch.rand(()).item()]\n"
        "class Data:\n    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return {'x': numpy.array(three()), 'y': numpy.zeros(3)}\n"
        "def drawn(y, rng, bad=-1):\n"
        "    numpy.random.normal(), torch.randn(3), random.gauss(0, 1)\n"
        "    if random.random() < bad: raise ValueError\n"
        "    return rng.random(3)\n"
        "prepserver_ops = {'drawn': drawn}\nprepserver_sources = {'data': Data}",
    )
    source = Plugin("data", columns={name: kinds.Array((3,), "float64") for name in "xy"})

    def states() -> str:
        every = random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()
        with np.printoptions(threshold=10_000):
            return repr(every)

    def rows(*ops: PluginOp, shuffle: bool = False) -> list[Any]:
        with PrepClient(
            source, ops, batch_size=2, inline=True, shuffle=shuffle, plugins="draws_much", fields="dict"
        ) as client:
            batches = list(client)
        columns = [torch.cat([batch[name] for batch in batches]).tolist() for name in ("index", "x", "y")]
        return sorted(zip(*columns, strict=True))

    np.random.normal()  # half of a pair is kept for the next call
    before = states()
    alone = rows()
    for index, x, _ in alone:
        draws = [random.Random(index).random(), np.random.RandomState(index).rand()]
        assert x == [*draws, torch.rand((), generator=torch.Generator().manual_seed(index)).item()]
    once, twice = rows(PluginOp("drawn", column="y")), rows(*[PluginOp("drawn", column="y")] * 2, shuffle=True)
    assert [row[:2] for row in alone] == [row[:2] for row in once] == [row[:2] for row in twice]
    first = Draws(SampleKey(0, 0, 0), 1, 0).key()
    assert once[0][2] == np.random.Generator(np.random.Philox(key=first)).random(3).tolist()
    with pytest.raises(Exception, match="ValueError"):
        rows(PluginOp("drawn", column="y", bad=2.0))
    assert states() == before


def test_listings_hang_on_code_parameters_and_length(module: Callable[[str, str], None], tmp_path: Path) -> None:
    module(
        "lists",
        "def made(n=0):\n    if n == 2: raise OSError('x')\n    return [(1,)] * n\n"
        "prepserver_sources = {'made': made}\n",
    )
    plugins.load(["lists"])
    spec = Plugin("made", n=3, columns={"it": kinds.Label()}).with_code(plugins.codes())
    info = build_index(spec, tmp_path / "cache")
    assert (info.samples, info.num_classes, info.places) == (3, 0, (str(tmp_path / "cache"),))
    assert open_source(spec, info.path).read(2) == {"it": 1}
    other = Plugin("made", n=4, columns={"it": kinds.Label()}).with_code(plugins.codes())
    assert build_index(other, tmp_path / "cache").content_digest != info.content_digest
    for n, said in ((0, "has 0 samples"), (2, "cannot be made: OSError: x"), ("a", "cannot be made: TypeError")):
        with pytest.raises(SourceError, match=said):
            build_index(Plugin("made", n=n), tmp_path / "cache")
    with pytest.raises(SourceError, match="'unknown' is not loaded"):
        build_index(Plugin("unknown"), tmp_path / "cache")
    with pytest.raises(SourceError, match="the code of source plug-in 'made' has changed"):
        build_index(Plugin("made", n=3, columns={"it": kinds.Label()}, code="aa"), tmp_path / "cache")


def test_a_dataset_that_has_another_length_is_listed_anew(module: Callable[[str, str], None], tmp_path: Path) -> None:
    module(
        "grows", "class Grows:\n    n = 3\n    def __len__(self): return self.n\n    def __getitem__(self, i): ...\n"
    )
    (loaded,) = plugins.load(["grows:Grows"])
    spec = Plugin("Grows")
    first = build_index(spec, tmp_path / "cache")
    loaded.value.n = 4
    assert build_index(spec, tmp_path / "cache").digest != first.digest
    with pytest.raises(SourceError, match=r"has 4 samples, but had 3"):
        open_source(spec, first.path)


@pytest.mark.parametrize("version", [1, 1.5, "one", np.int64(7)])
def test_a_dataset_of_another_version_is_listed_anew(
    version: Any, module: Callable[[str, str], None], tmp_path: Path
) -> None:
    """What it reads may have changed, which nothing else shows."""
    module("dated", "class Dated:\n    def __len__(self): return 3\n    def __getitem__(self, i): ...\n")
    (loaded,) = plugins.load(["dated:Dated"])
    spec = Plugin("Dated")
    plain = build_index(spec, tmp_path / "cache").content_digest
    loaded.value.version = lambda self: "as Datasets of other libraries have it"
    assert build_index(spec, tmp_path / "cache").content_digest == plain
    loaded.value.version = version
    first = build_index(spec, tmp_path / "cache")
    assert first.content_digest != plain
    assert len(open_source(spec, first.path)) == 3
    loaded.value.version = f"{version}!"
    assert build_index(spec, tmp_path / "cache").content_digest != first.content_digest
    with pytest.raises(SourceError, match=f"has version '{version}!' now: attach again"):
        open_source(spec, first.path)


OBJECTS: dict[str, kinds.Kind] = {
    "boxes": kinds.Boxes(),
    "labels": kinds.PerBox(),
    "points": kinds.Keypoints(each=2, pairs=((0, 1),)),
}


@pytest.mark.parametrize("count", [0, 3])
def test_datasets_give_boxes_in_any_form_of_numbers(count: int) -> None:
    sample: dict[str, Any] = {
        "boxes": torch.zeros((count, 4), dtype=torch.float64) if count else [],
        "labels": torch.arange(count) if count else torch.tensor([]),
        "points": np.ones((count, 2, 3), np.int32),
    }
    record = PluginSource(Plugin("mine", columns=OBJECTS), [sample], 1, []).read(0)
    assert {name: (value.shape, str(value.dtype)) for name, value in record.items()} == {
        "boxes": ((count, 4), "float32"), "labels": ((count,), "int64"), "points": ((count, 2, 3), "float32"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ({"boxes": np.zeros((2, 5))}, r"ndarray of shape \(2, 5\)"),
        ({"boxes": "a box"}, "str"),
        ({"labels": [0.5, 1.5]}, "list"),
        ({"labels": 3}, "int"),
        ({"points": np.zeros((2, 3))}, "ndarray"),
    ],
)
def test_boxes_that_a_dataset_does_not_declare_are_refused(change: dict[str, Any], given: str) -> None:
    sample = {"boxes": np.zeros((2, 4)), "labels": [1, 2], "points": np.zeros((2, 2, 3))} | change
    with pytest.raises(PluginError, match=f"declares .* and gives {given}"):
        PluginSource(Plugin("mine", columns=OBJECTS), [sample], 1, []).read(0)
    spec = Plugin("mine", columns=OBJECTS)
    assert source_from_wire(spec.to_wire()) == spec
    assert source_from_wire(json.loads(json.dumps(spec.to_wire()))) == spec


def test_masks_that_are_arrays_follow_their_image() -> None:
    follower = MaskFollower({"mask": GREY}, {"mask": kinds.Mask()})
    assert follower.size == (2, 3)
    out = np.empty((2, 3), np.uint8)
    follower.make((2, 3), [Mirror(COLUMNS)], {"mask": out})
    assert np.array_equal(out, GREY[:, ::-1])
