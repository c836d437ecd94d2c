"""The sources as a user names them: any path that this process understands, made absolute for the daemon."""

from __future__ import annotations

import os

from prepserver.pipeline import sources
from prepserver.pipeline.sources import SyntheticImages

__all__ = ["FileList", "ImageFolder", "Packed", "SyntheticImages"]


def ImageFolder(root: str | os.PathLike[str]) -> sources.ImageFolder:  # noqa: N802 -- reads as the class that it makes
    """Images in one folder per class, as torchvision's ImageFolder: labels are the places of the sorted names.

    Args:
        root: The folder of class folders; relative to the current directory or absolute, as the daemon's
            machine sees it.
    """
    return sources.ImageFolder(os.path.abspath(os.path.expanduser(os.fspath(root))))


def FileList(path: str | os.PathLike[str]) -> sources.FileList:  # noqa: N802 -- reads as the class that it makes
    """Images named by a text file (``path label`` per line) or a CSV file (``path,label``).

    Args:
        path: The list; paths in it are relative to its folder, or absolute. If all labels are integers, they are taken
            as they are; otherwise each distinct label is the name of a class, and its place among the sorted names
            (by code point) is the label. Numbers that are not integers are refused.
    """
    return sources.FileList(os.path.abspath(os.path.expanduser(os.fspath(path))))


def Packed(root: str | os.PathLike[str]) -> sources.Packed:  # noqa: N802 -- reads as the class that it makes
    """A dataset that ``prepserver pack`` has made of another one: same samples, labels and order, read faster.

    Args:
        root: Its folder; relative to the current directory or absolute, as the daemon's machine sees it.
    """
    return sources.Packed(os.path.abspath(os.path.expanduser(os.fspath(root))))
