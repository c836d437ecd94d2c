"""`MaskTokens`: tokens hidden for a masked language model."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import NO_LABEL, Array, Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns, column_of

_MAX_TOKEN = 2**31 - 1
_MAX_SPECIAL = 1024


class MaskTokens(Op):
    """Hide tokens for a masked language model, as BERT does (Devlin et al., 2019); other ones in each epoch.

    Each token that is not special is chosen with `probability`. Of the chosen ones, 80 % become `mask`, 10 % become a
    random token and 10 % stay. The new column `labels` holds the chosen tokens as they were, and -100, which torch's
    losses ignore, in all other places. Put it after `PadTokens`, with the padding among the special tokens.

    Attributes:
        mask: Number of the token that hides others, such as ``[MASK]``.
        vocabulary: Number of tokens: random ones are drawn from 0 to `vocabulary` - 1, even if they are special. In a
            small vocabulary, such as letters, number the special ones last, and pass the number of the others.
        special: Numbers of tokens that are never chosen, at most 1024: padding, ``[CLS]``, ``[SEP]``.
        probability: Probability that a token is chosen, 0 to 1.
        column: The column of tokens.
        labels: Name of the new column: int64, in the shape of the tokens.
    """

    nests = False

    def __init__(
        self,
        mask: int,
        vocabulary: int,
        special: checks.Ints = (),
        probability: float = 0.15,
        column: str = "tokens",
        labels: str = "labels",
    ) -> None:
        numbers = checks.items("special", special, range(_MAX_SPECIAL + 1))
        self.mask = checks.integer("mask", mask, 0, _MAX_TOKEN)
        self.vocabulary = checks.integer("vocabulary", vocabulary, 1, _MAX_TOKEN)
        self.special = tuple(sorted({checks.integer("special", each, -(2**63), 2**63 - 1) for each in numbers}))
        self.probability = checks.number("probability", probability, 0.0, 1.0)
        self.column = checks.name("column", column)
        self.labels = checks.name("labels", labels)

    def after(self, columns: Columns) -> Columns:
        count = column_of(columns, self.column, Tokens, "tokens").count
        if count is None:
            raise SpecError("column", self.column, "has no fixed number of tokens: put PadTokens before this op")
        if self.labels in columns:
            raise SpecError("labels", self.labels, "is the name of another column")
        return {**columns, self.labels: Array((count,), "int64", fill=NO_LABEL, beside=self.column)}

    @property
    def copies(self) -> dict[str, str]:
        return {self.labels: self.column}
