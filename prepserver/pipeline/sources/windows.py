"""`Windows`: neighbouring rows of a source in one sample."""

from collections.abc import Mapping, Sequence

from prepserver.pipeline import checks
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.declared import MAX_DIMENSIONS
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Kind, Label, Scalar, Text
from prepserver.pipeline.record import Columns, shown
from prepserver.pipeline.source import SourceSpec

MAX_STEPS = 1 << 20  # of a window, and how far one reaches
MAX_LISTED = 4096  # places of a column's rows; a spec travels in messages


class Windows(Composed):
    """Windows over the rows of a source, such as 96 steps of a time series and the 24 steps that follow.

    A sample is a row with columns that hold values of rows around it: a column whose values have the shape S becomes an
    `Array` of ``(steps, *S)``. Every other column has the value of the row itself. Rows of a series follow one another
    in the source. A row that cannot be read makes the windows that need it bad samples.

    Attributes:
        source: The source.
        steps: For each column of numbers that becomes a window, the places of its rows, where 0 is the sample's own
            row: ``{"state": [-1, 0], "action": range(50)}``; at most 4096. An int, such as 120, is ``range(120)`` for
            each column of numbers but `within`.
        within: A column of numbers or text. Where its value changes, another series begins, and no window has rows of
            two. Samples have no such column if it is text. None, the default, for a source that is one series.
        stride: Rows from one sample of a series to the next, beginning with its first one; 1, the default, for windows
            at any place.
        pad: False, the default, for samples whose rows are all in the series. True for one at each row, or each
            `stride`-th: its first or last row stands for rows beyond the ends of the series. A column of bools for each
            window, such as ``action_is_pad``, or one, ``is_pad``, if `steps` is an int, tells where.

    Raises:
        SpecError: A column is not there, or is no number or array of one shape.
    """

    def __init__(
        self,
        source: SourceSpec,
        steps: int | Mapping[str, Sequence[int]],
        within: str | None = None,
        stride: int = 1,
        pad: bool = False,
    ) -> None:
        if isinstance(steps, Mapping):
            found = [(checks.name("steps", name), _places(f"steps.{name}", places)) for name, places in steps.items()]
            steps = dict(sorted(found))
        else:
            steps = checks.integer("steps", steps, 1, MAX_STEPS)
        self.steps = steps
        self.within = within if within is None else checks.name("within", within)
        self.stride = checks.integer("stride", stride, 1, MAX_STEPS)
        self.pad = checks.flag("pad", pad)
        super().__init__([source])
        columns = self.sources[0].columns
        if within is not None and not isinstance(columns.get(within), Scalar | Label | Text):
            raise SpecError("within", within, f"is no column of numbers or text; there are: {shown(columns)}")
        wrong = [] if isinstance(steps, int) else [name for name in steps if name not in self.windows]
        if wrong or not self.windows:
            reason = "must be columns of numbers of one shape, of 7 dimensions at most; others are those of the row"
            raise SpecError("steps", wrong or steps, f"{reason}. There are: {shown(columns)}")
        for column, mask in self.masks.items():
            if checks.name(f"steps.{column}", mask) in columns:
                raise SpecError(f"steps.{column}", mask, "is a column of the source, and would be that of the padding")

    @property
    def windows(self) -> dict[str, Sequence[int]]:
        """The places of the rows of each column that becomes a window."""
        own = [name for name, kind in self.sources[0].columns.items() if is_joined(kind)]
        if isinstance(self.steps, int):
            return {name: range(self.steps) for name in own if name != self.within}
        return {name: self.steps[name] for name in own if name in self.steps}

    @property
    def masks(self) -> dict[str, str]:
        """The columns that tell what is padding, by that whose padding it is."""
        if isinstance(self.steps, int):
            return dict.fromkeys([*self.windows][: self.pad], "is_pad")
        return {name: f"{name}_is_pad" for name in self.windows if self.pad}

    @property
    def columns(self) -> Columns:
        """Those of the source, of which some are windows, and what tells their padding."""
        found, windows, masks = dict(self.sources[0].columns), self.windows, self.masks
        for name, places in windows.items():
            shape, dtype = found[name].stored()
            found[name] = Array((len(places), *shape), dtype, fill=found[name].blank)
        if isinstance(found.get(self.within or ""), Text):  # which no row could hold
            del found[self.within or ""]
        # A row that holds no sample is padding.
        return found | {mask: Array((len(windows[name]),), "bool", fill=1) for name, mask in masks.items()}


def is_joined(kind: Kind) -> bool:
    """Say whether a column of this kind can become windows."""
    if isinstance(kind, Array):
        return kind.shape is not None and len(kind.shape) < MAX_DIMENSIONS
    return isinstance(kind, Scalar | Label)


def _places(field: str, given: object) -> tuple[int, ...]:
    listed = list(given[: MAX_LISTED + 1]) if isinstance(given, range) else given
    places = checks.items(field, listed, range(1, MAX_LISTED + 1))
    return tuple(checks.integer(field, each, -MAX_STEPS, MAX_STEPS) for each in places)
