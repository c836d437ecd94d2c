"""Fields against their bounded types: each refusal names the message, the field and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from prepserver.protocol.schema import (
    MAX_POSITION,
    Count,
    Position,
    ProtocolError,
    Seconds,
    Size,
    Small,
    Tree,
    Trees,
    Word,
    build,
)


@dataclass(frozen=True, slots=True)
class Letter:
    name: Word
    at: Position
    wait_s: Seconds = 1.0
    kind: Literal["a", "b"] = "a"
    sure: bool = False
    pair: tuple[Small, Small] | None = None
    rows: Annotated[list[tuple[Position, Word]], Size(2)] = field(default_factory=list)
    tree: Tree = field(default_factory=dict)
    trees: Trees = field(default_factory=list)


def letter(**fields: Any) -> Letter:
    return build(Letter, {"name": "n", "at": 0, **fields})


def test_defaults_fill_what_is_not_said() -> None:
    assert letter() == Letter("n", 0)


def test_values_come_back_in_the_types_of_the_fields() -> None:
    made = letter(at=MAX_POSITION, wait_s=3, pair=[1, 2], rows=[[5, "x"]], tree={"a": [1, None, 1.5]}, sure=True)
    assert made == Letter("n", MAX_POSITION, 3.0, pair=(1, 2), rows=[(5, "x")], tree={"a": [1, None, 1.5]}, sure=True)
    assert type(made.wait_s) is float


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": 5}, "Letter.name: expected str, got int"),
        ({"name": b"n"}, "Letter.name: expected str, got bytes"),
        ({"name": "x" * 257}, "Letter.name: 257 long, at most 256"),
        ({"at": -1}, "Letter.at: -1 is not in"),
        ({"at": MAX_POSITION + 1}, "Letter.at: .* is not in"),
        ({"at": True}, "Letter.at: expected int, got bool"),
        ({"at": 1.0}, "Letter.at: expected int, got float"),
        ({"at": None}, "Letter.at: expected int, got NoneType"),
        ({"wait_s": float("nan")}, "Letter.wait_s: nan is not a finite number"),
        ({"wait_s": float("inf")}, "Letter.wait_s: inf is not a finite number"),
        ({"wait_s": -0.5}, "Letter.wait_s: -0.5 is not in"),
        ({"wait_s": "1"}, "Letter.wait_s: expected float, got str"),
        ({"kind": "c"}, "Letter.kind: 'c' is not one of a, b"),
        ({"kind": ["a"]}, "Letter.kind: .* is not one of a, b"),
        ({"sure": 1}, "Letter.sure: expected bool, got int"),
        ({"pair": [1]}, "Letter.pair: expected 2 items"),
        ({"pair": [1, "2"]}, r"Letter.pair\[1\]: expected int, got str"),
        ({"rows": {}}, "Letter.rows: expected a list, got dict"),
        ({"rows": [[1, "a"], [2]]}, r"Letter.rows\[1\]: expected 2 items"),
        ({"rows": [[1, "a"]] * 3}, "Letter.rows: 3 long, at most 2"),
        ({"tree": []}, "Letter.tree: expected a map, got list"),
        ({"tree": 5}, "Letter.tree: expected a map, got int"),
        ({"tree": {"a": b"raw"}}, "Letter.tree.a: bytes is not allowed here"),
        ({"tree": {"a": {b"k": 1}}}, "Letter.tree.a: key b'k' is not a string"),
        ({"tree": {"a": [float("nan")]}}, r"Letter.tree.a\[0\]: nan is not a finite number"),
        ({"tree": {str(i): i for i in range(65)}}, "Letter.tree: 65 long, at most 64"),
        ({"trees": [object()]}, r"Letter.trees\[0\]: object is not allowed here"),
        ({"other": 1}, "Letter: unknown field 'other'"),
    ],
)
def test_a_field_that_cannot_be_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        letter(**fields)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ProtocolError, match="Letter: field 'at' is missing"):
        build(Letter, {"name": "n"})


def test_none_is_a_value_only_where_the_field_is_optional() -> None:
    assert letter(pair=None).pair is None
    with pytest.raises(ProtocolError, match=r"Letter.sure"):
        letter(sure=None)


def test_the_text_of_a_refusal_is_short_however_long_the_value() -> None:
    with pytest.raises(ProtocolError) as e:
        letter(kind="x" * 60000)
    assert len(str(e.value)) < 1000


def test_the_largest_count_is_taken() -> None:
    @dataclass(frozen=True, slots=True)
    class Counted:
        n: Count

    globals()["Counted"] = Counted  # annotations are looked up in the module
    assert build(Counted, {"n": 2**48}).n == 2**48
    with pytest.raises(ProtocolError, match=r"Counted\.n"):
        build(Counted, {"n": 2**48 + 1})
