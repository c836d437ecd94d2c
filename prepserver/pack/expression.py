"""Parses a source, or a list of ops, that the command line gives in Python's notation.

``Take(ImageFolder("/data/train"), 1000)`` is parsed and never evaluated: the text can call sources, ops, kinds and
``range`` with plain values, and nothing else.
"""

from __future__ import annotations

import ast
import difflib
import os
from typing import Any

from prepserver.pack import PackError
from prepserver.pipeline.declared import KINDS
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import OPS
from prepserver.pipeline.sources import SOURCES, SourceSpec

_MAX_CHARS = 64 << 10


def source_from(text: str) -> SourceSpec | None:
    """Return the source that a text describes; None if the text is not a call, and so a path.

    Raises:
        PackError: It calls anything but a source, or has arguments other than sources and plain values.
        SpecError: A source refuses a parameter.
    """
    name = text.partition("(")[0]
    if not text.endswith(")") or not name.isidentifier() or (name not in SOURCES and os.path.exists(text)):
        return None
    if name not in SOURCES:
        raise PackError(f"{text[:200]}: {name} is not a source; sources are {', '.join(SOURCES)}", usage=True)
    source = _parsed(text)
    if not isinstance(source, SourceSpec):
        raise PackError(f"{text[:200]} is not a source", usage=True)
    return source


def ops_from(text: str) -> list[Op]:
    """Return the ops that a text lists, such as ``[RandomResizedCrop(224), RandomHorizontalFlip()]``.

    Raises:
        PackError: It is not a list of ops.
        SpecError: An op refuses a parameter.
    """
    ops = _parsed(text if text.startswith("[") else f"[{text}]")
    if not isinstance(ops, list) or not all(isinstance(op, Op) for op in ops):
        raise PackError(f"{text[:200]} is not a list of ops, such as [RandomResizedCrop(224)]", usage=True)
    return ops


def _parsed(text: str) -> Any:
    if len(text) > _MAX_CHARS:
        raise PackError(f"{text[:80]}... has {len(text)} characters, more than {_MAX_CHARS}", usage=True)
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SpecError):
            raise
        raise PackError(f"{text[:200]}: {error}", usage=True) from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in SOURCES or name in OPS:
            # A ** has no name; TypeError says that a keyword must be a string.
            named: dict[Any, Any] = {each.arg: _value(each.value) for each in node.keywords}
            return {**OPS, **SOURCES}[name](*map(_value, node.args), **named)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="kinds"), attr=name)) if name in KINDS:
            return KINDS[name](*map(_value, node.args), **{str(each.arg): _value(each.value) for each in node.keywords})
        case ast.Call(func=ast.Name(id="range"), keywords=[]):  # the steps of `Windows`
            return range(*map(_value, node.args))
        case ast.Call(func=ast.Name(id=name)):
            near = difflib.get_close_matches(name, [*OPS, *SOURCES], 1)
            raise ValueError(f"there is no op or source {name}{f'; did you mean {near[0]}?' if near else ''}")
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case _:
            try:
                return ast.literal_eval(node)
            except ValueError:
                what = "a number, a text in quotes, a list, or a call such as RandomHorizontalFlip()"
                raise ValueError(f"{ast.unparse(node)} must be {what}") from None
