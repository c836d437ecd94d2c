"""Ops, followers and kinds are found by themselves; what a new one lacks is named here."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import prepclient
from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.members import members
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import OPS
from prepserver.pipeline.sources import SOURCES
from prepserver.source.readers import READERS
from prepserver.transform.kinds import FOLLOWERS
from prepserver.transform.ops import STAGES
from tests.stubs import OPS_STUB, SOURCES_STUB, stub_of_ops, stub_of_sources

TESTS = "".join(path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py"))
STRUCTURAL = {"Decode", "ToLayout"}
"""They have no stage; see `prepserver.transform.ops`."""


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_done_documented_exported_and_tested(name: str) -> None:
    op = OPS[name]
    assert name in STRUCTURAL or op in STAGES, f"{name} has no stage: prepserver/transform/ops/{module_of(op)}.py"
    assert getattr(prepclient, name) is op
    assert inspect.getdoc(op), f"{name} has no docstring"
    missing = [field for field in inspect.signature(op).parameters if f"{field}:" not in (inspect.getdoc(op) or "")]
    assert set(missing) <= {"antialias"}, f"the docstring of {name} does not say what {missing} is"
    assert f"{name}(" in TESTS, f"no test compares the rows of {name} with an oracle: see tests/unit/transform"


def module_of(op: type[Op]) -> str:
    return op.__module__.rpartition(".")[2]


def test_every_stage_is_of_an_op_in_a_file_of_the_same_name() -> None:
    for op, stage in STAGES.items():
        assert OPS[op.__name__] is op
        assert stage.__module__.rpartition(".")[2] == module_of(op)


def test_type_checkers_are_told_of_every_op() -> None:
    assert OPS_STUB.read_text() == stub_of_ops(), "run python -m tests.stubs"
    assert SOURCES_STUB.read_text() == stub_of_sources(), "run python -m tests.stubs"


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_read_documented_exported_and_tested(name: str) -> None:
    source = SOURCES[name]
    file = source.__module__.rpartition(".")[2]
    assert source in READERS, f"{name} has no reader: prepserver/source/readers/{file}.py"
    assert READERS[source].__module__.rpartition(".")[2] in (file, "composed")
    assert getattr(prepclient, name) is source
    parameters, said = inspect.signature(source).parameters, inspect.getdoc(source) or ""
    missing = [name for name in parameters if f"{name}:" not in said]
    assert missing == [], f"the docstring of {name} does not say what {missing} is"
    assert f"{name}(" in TESTS, f"no test reads {name}: write one in tests/unit/source"


def test_every_kind_on_a_plane_follows_its_image() -> None:
    spatial = {kind for kind in vars(kinds).values() if isinstance(kind, type) and issubclass(kind, kinds.Spatial)}
    assert set(FOLLOWERS) == spatial - {kinds.Spatial, Image}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class A: pass", "it defines none"),
        ("from prepserver.pipeline.op import Op\nclass A(Op): pass\nclass B(Op): pass", "it defines A, B"),
    ],
)
def test_a_file_without_one_member_is_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / f"members_of_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=f"{package.name}.one must define one subclass of Op; {said}"):
        members(importlib.import_module(package.name), Op)


def test_the_way_out_is_named_where_a_kind_has_no_fixed_size() -> None:
    for kind in (kinds.Text(), kinds.Bytes(), kinds.Tokens(), kinds.Array()):
        with pytest.raises(SpecError, match="leave the column out"):
            kind.stored()
    counted: list[kinds.Kind] = [kinds.Boxes(), kinds.PerBox(), kinds.Keypoints()]
    for each in counted:
        with pytest.raises(SpecError, match=r"PadBoxes\(n\)"):
            each.stored()


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (kinds.Label(), ((), "int64")),
        (kinds.Index(), ((), "int64")),
        (kinds.Scalar(), ((), "float32")),
        (kinds.Array((2, 3), "uint8"), ((2, 3), "uint8")),
        (kinds.Mask((4, 5)), ((4, 5), "uint8")),
        (kinds.Boxes((4, 5), 7), ((7, 4), "float32")),
        (kinds.Keypoints((4, 5), 7), ((7, 3), "float32")),
        (kinds.Keypoints((4, 5), 7, each=2), ((7, 2, 3), "float32")),
        (kinds.PerBox(7, "float32"), ((7,), "float32")),
        (kinds.BoxCount(), ((), "int64")),
        (kinds.Tokens(7), ((7,), "int64")),
    ],
)
def test_a_kind_of_fixed_size_knows_its_shape_in_a_row(kind: kinds.Kind, stored: object) -> None:
    assert kind.stored() == stored


def test_two_members_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / f"members_of_{tmp_path.name}"
    package.mkdir()
    for name in ("__init__", "_private"):
        (package / f"{name}.py").touch()
    (package / "one.py").write_text("from prepserver.pipeline.op import Op\nclass A(Op): pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(members(importlib.import_module(package.name), Op)) == ["A"]
    (package / "other.py").write_text("from prepserver.pipeline.op import Op\nclass A(Op): pass")
    importlib.invalidate_caches()
    with pytest.raises(ImportError, match=f"{package.name}.other defines A, which another module defines, too"):
        members(importlib.import_module(package.name), Op)
