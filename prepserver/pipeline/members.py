"""Finds the members of a package that is extended by adding files to it."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def members(package: ModuleType, base: type[T]) -> dict[str, type[T]]:
    """Return the classes that the modules of a package define, by name, in the order of their modules' names.

    Each module has one member, which derives from `base`, or none where its name begins with an underscore.

    Raises:
        ImportError: A module defines no member, or several; or two members have one name.
    """
    found: dict[str, type[T]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        own = [
            each
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, base) and each.__module__ == module.__name__
            and not each.__name__.startswith("_")
        ]  # fmt: skip
        if len(own) != 1:
            names = ", ".join(each.__name__ for each in own) or "none"
            raise ImportError(f"{module.__name__} must define one subclass of {base.__name__}; it defines {names}")
        if own[0].__name__ in found:
            raise ImportError(f"{module.__name__} defines {own[0].__name__}, which another module defines, too")
        found[own[0].__name__] = own[0]
    return found
