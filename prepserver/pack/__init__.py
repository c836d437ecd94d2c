"""``prepserver pack`` writes packed datasets: samples of any source go into a few large files, their JPEGs indexed.

`expression` reads a source as Python writes it; `run` plans, resumes and writes; `crew` keeps the processes that
transcode; `transcode` does one image. `prepserver.source.readers.packed` reads the datasets.
"""


class PackError(Exception):
    """Packing cannot begin or go on; the text says what to do. With `usage`, the arguments are wrong."""

    def __init__(self, reason: str, usage: bool = False) -> None:
        super().__init__(reason)
        self.usage = usage
