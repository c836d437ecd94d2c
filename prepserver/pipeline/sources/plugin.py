"""`Plugin`: a Dataset of the daemon's operator."""

from prepserver.pipeline import declared
from prepserver.pipeline.declared import DeclaredColumns, PluginSpec
from prepserver.pipeline.record import IMAGES
from prepserver.pipeline.source import SourceSpec, short


class Plugin(PluginSpec, SourceSpec):
    """A map-style Dataset of the daemon's operator, which the daemon's configuration loads.

    Workers construct it as ``Dataset(**params)`` and read ``dataset[index]``: a dict with the columns, or a tuple of
    their values in order. A sample must depend on the index only. See docs/plugins.md.

    Attributes:
        name: Name of the plug-in.
        params: Keyword arguments: numbers, strings, bools, None, and lists of these.
        columns: Columns of each sample: a map of names to kinds. The default is ``image`` and ``label``.
        code: Digest of the code, as `prepserver status --json` shows it; empty for any code.
    """

    role = "source"
    own = ("columns", "code")

    def __init__(self, name: str, /, *, columns: DeclaredColumns = IMAGES, code: str = "", **params: object) -> None:
        super().__init__(name, params, code)
        self.declared = declared.declared_columns(columns)

    @property
    def location(self) -> str:
        """Its name and parameters."""
        return short(f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.params.items())})")
