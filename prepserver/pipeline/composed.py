"""The base of sources that are composed of other sources.

A composed source maps each of its indices to one of its sources and an index there. It holds no samples, so jobs that
use the same source in different compositions share its listing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import SourceSpec, check_bytes, short
from prepserver.pipeline.spec import Codes

Sources = Sequence[SourceSpec]

MAX_SOURCES = 64  # limit on all sources of a composition, including those inside others
MAX_DEPTH = 8  # limit on how deep sources nest, including the innermost


class Pattern(NamedTuple):
    """Sources take turns in a pattern; one that ends begins again."""

    sources: tuple[int, ...] = (0,)  # the number of the source of each place of a period
    start: int = 0  # the first sample of each source
    length: int | None = None  # number of samples; None for whole periods until each source has ended once


class Blocks(NamedTuple):
    """Blocks of `block_length` samples from `cycle_length` sources in turn, each sample once."""

    cycle_length: int = 1
    block_length: int = 1


class Composed(SourceSpec):
    """A source of samples of other sources.

    A subclass's constructor takes ``sources``, or ``source`` if there is only one, as its first parameter.

    Raises:
        SpecError: Something is no source, columns differ, or the composition is too large.
    """

    sources: tuple[SourceSpec, ...]

    def __init__(self, sources: Sources) -> None:
        # Subclasses call this last, because it measures the whole spec.
        if not isinstance(sources, list | tuple) or not sources:
            raise SpecError("sources", sources, "must be a list of sources, such as [ImageFolder(a), ImageFolder(b)]")
        if len(sources) > MAX_SOURCES:
            raise SpecError("sources", len(sources), f"are more than {MAX_SOURCES}")
        # On the wire a list of their maps.
        self.sources = tuple(_source(number, each) for number, each in enumerate(sources))
        _check_columns(self.sources)
        if (depth := _depth(self)) > MAX_DEPTH:
            raise SpecError("sources", depth, f"lie deeper inside each other than {MAX_DEPTH}")
        if (count := sum(1 for _ in self.parts()) - 1) > MAX_SOURCES:
            raise SpecError("sources", count, f"are more than {MAX_SOURCES}, counting those inside others")
        check_bytes("sources", self)

    @property
    def columns(self) -> Columns:
        """Those of its sources, which agree."""
        return self.sources[0].columns

    @property
    def location(self) -> str:
        """Its name and the locations of its sources."""
        return short(f"{type(self).__name__}({', '.join(dict.fromkeys(each.location for each in self.sources))})")

    def turns(self, lengths: Sequence[int]) -> Pattern | Blocks:
        """Return how its sources, of these lengths, take turns; by default one after the other.

        This is not called if a listing says which samples are chosen.
        """
        return Blocks()

    def parts(self) -> Iterator[SourceSpec]:
        """As `SourceSpec.parts`."""
        yield self
        for each in self.sources:
            yield from each.parts()

    def without_paths(self) -> list[tuple[str, Any]]:
        """As `SourceSpec.without_paths`."""
        own = [(name, value) for name, value in super().without_paths() if name != "sources"]
        return sorted([*own, ("sources", [each.without_paths() for each in self.sources])])

    def with_code(self, codes: Codes) -> Self:
        """As `Spec.with_code`."""
        return self.replaced(sources=tuple(each.with_code(codes) for each in self.sources))

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `SourceSpec.from_params`."""
        first = next(iter(inspect.signature(cls).parameters))
        given = params.get("sources")
        if first == "source" and "source" not in params and isinstance(given, list) and len(given) == 1:
            params = {"source": given[0], **{name: value for name, value in params.items() if name != "sources"}}
        return super().from_params(params)


def _source(number: int, given: object) -> SourceSpec:
    if isinstance(given, Mapping):
        from prepserver.pipeline.sources import source_from_wire  # the registry imports the subclasses

        try:
            return source_from_wire(given)
        except SpecError as error:
            field = error.field.replace("source", f"sources[{number}]", 1)
            raise SpecError(field, error.value, error.reason) from None
    if not isinstance(given, SourceSpec):
        raise SpecError(f"sources[{number}]", given, "must be a source, such as ImageFolder(root)")
    return given


def _check_columns(sources: tuple[SourceSpec, ...]) -> None:
    first = sources[0].columns
    for number, each in enumerate(sources[1:], 1):
        found = each.columns
        different = [
            f"{name} is {found.get(name, 'missing')}, in sources[0] {first.get(name, 'missing')}"
            for name in {**first, **found}
            if first.get(name) != found.get(name)
        ]
        if different:
            reason = f"must have the same columns as sources[0]: {'; '.join(different)}"
            raise SpecError(f"sources[{number}]", each.location, reason)


def _depth(source: SourceSpec) -> int:
    return 1 + max(map(_depth, source.sources)) if isinstance(source, Composed) else 1
