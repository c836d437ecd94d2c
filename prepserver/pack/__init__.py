"""``prepserver pack`` writes packed datasets: the samples of any source in a few large files, with indexed JPEGs.

`expression` parses a source in Python's notation; `run` plans, resumes and writes; `crew` runs the processes that
transcode; `transcode` converts one image. `prepserver.source.readers.packed` reads the datasets.
"""


class PackError(Exception):
    """Packing cannot start or continue; the text says what to do. With `usage`, the arguments are wrong."""

    def __init__(self, reason: str, usage: bool = False) -> None:
        super().__init__(reason)
        self.usage = usage
