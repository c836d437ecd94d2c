"""Plug-ins: the operator's own code, loaded by the names in the configuration.

A process loads plug-ins once, before its first row: the zygote for all workers, `inline=True` and `prepserver replay`
for themselves. A name that a client sends is only looked up, never imported.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

from prepserver.pipeline.declared import MAX_NAME_CHARS
from prepserver.pipeline.spec import Codes, Role
from prepserver.protocol.places import NEEDS_GUARD, ONLY_ROWS_VARIABLE
from prepserver.protocol.work import MAX_PLUGINS

ROLES: tuple[Role, ...] = get_args(Role)
_GROUPS: dict[Role, str] = {role: f"prepserver.{role}s" for role in ROLES}
"""Groups of entry points; a module's own list of plug-ins has that name with an underscore for the dot."""


class PluginError(Exception):
    """A plug-in cannot be loaded, raised, or returned a value that it did not declare; the text names it."""


class Loaded(NamedTuple):
    """A plug-in."""

    role: Role
    name: str  # its name in specs
    code: str  # digest of its code
    origin: str  # its distribution and file, for the log
    value: Any  # a function that makes a Dataset or computes an op
    module: str  # the name of the module that has it
    compiled: object  # its compiled code; None if it is no function

    def is_same(self, value: Any) -> bool:
        """Whether `value` is still this plug-in: a notebook reloads modules, or has new code put into functions."""
        return self.value is value and self.compiled is getattr(value, "__code__", None)


keeps_random_state = True
"""Whether this process runs other code, too, whose global random generators must stay as they are."""

_loaded: dict[tuple[Role, str], Loaded] = {}
_replaced: dict[tuple[Role, str, str], Loaded] = {}
"""By code: those whose module was reloaded. A notebook's older clients still use them."""

_importing = ContextVar("_importing", default=False)  # whether `load` imports the code that runs


def load(names: Sequence[str]) -> list[Loaded]:
    """Imports plug-ins into this process; returns all that it has.

    `names` are those of entry points in the groups ``prepserver.ops`` and ``prepserver.sources``, of modules that list
    plug-ins as ``prepserver_ops`` and ``prepserver_sources``, or of single objects, ``module:object``: a class with
    ``__getitem__`` is a source, any other callable an op.

    Raises:
        PluginError: One cannot be imported, is not a plug-in, or has the same name as another.
    """
    if _importing.get():
        raise PluginError(f"an import of plug-ins cannot use a PrepClient: {NEEDS_GUARD}")
    token = _importing.set(True)
    try:
        found = [each for name in names for each in _found(name)]
    finally:
        _importing.reset(token)
    seen: set[tuple[Role, str]] = set()
    digests: dict[str, tuple[str, str]] = {}  # by module: each needs a scan of all installed distributions
    for role, name, module, value in found:
        if not callable(value) or not 0 < len(name) <= MAX_NAME_CHARS:
            raise PluginError(
                f"plug-in {name!r} is not a valid {role}: it must be callable, with a name of 1 to {MAX_NAME_CHARS} "
                "characters"
            )
        there = _loaded.get((role, name))
        is_reloaded = there is not None and there.module == module.__name__ and (role, name) not in seen
        if there is not None and there.value is not value and not is_reloaded:
            raise PluginError(f"two {role} plug-ins have the name {name!r}: {there.origin} and {module.__name__}")
        seen.add((role, name))
        if there is None or not there.is_same(value):
            if there is not None and there.value is not value:
                _replaced[role, name, there.code] = there
            code, origin = digests.get(module.__name__) or digests.setdefault(module.__name__, _code_of(module))
            compiled = getattr(value, "__code__", None)
            _loaded[role, name] = Loaded(role, name, code, origin, value, module.__name__, compiled)
    if len(_loaded) > MAX_PLUGINS:
        raise PluginError(
            f"{len(_loaded)} plug-ins are more than {MAX_PLUGINS}: name only those you need, as module:object"
        )
    return loaded()


def only_make_rows() -> None:
    """Say that this process runs nothing else: plug-ins may change global random generators, and no client attaches."""
    global keeps_random_state  # once, at the beginning
    keeps_random_state = False
    os.environ[ONLY_ROWS_VARIABLE] = "1"


def raised(what: str, error: BaseException) -> str:
    """Say what a plug-in raised, and at which line of its own code: the traceback is in the daemon's log."""
    own = _own_lines(traceback.extract_tb(error.__traceback__))
    at = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{what} raised {type(error).__name__}{at}: {error}"


def _own_lines(lines: Sequence[traceback.FrameSummary]) -> Sequence[traceback.FrameSummary]:
    """Those of a plug-in's code, without libraries; all if there are no others."""
    libraries = *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), str(Path(__file__).parent)
    folders = tuple(f"{each}/" for each in libraries)
    return [each for each in lines if not each.filename.startswith(folders)] or lines


def loaded() -> list[Loaded]:
    """All plug-ins of this process."""
    return list(_loaded.values())


def codes() -> Codes:
    """Digests of this process's plug-ins; see `prepserver.pipeline.spec.Codes`."""
    return {key: each.code for key, each in _loaded.items()}


def find(role: Role, name: str, code: str) -> Any:
    """The function of a plug-in; raises `PluginError` if it is not loaded here, or its code is not that of the spec."""
    each = _replaced.get((role, name, code)) or _loaded.get((role, name))
    if each is None:
        raise PluginError(f"{role} plug-in {name!r} is not loaded in this process: name it with --plugin")
    if code not in ("", each.code):
        raise PluginError(
            f"the code of {role} plug-in {name!r} has changed: the rows were made by code {code}, and {each.origin} "
            f"is now {each.code}"
        )
    return each.value


def _found(name: str) -> Iterator[tuple[Role, str, ModuleType, Any]]:
    points = [(role, point) for role in ROLES for point in metadata.entry_points(group=_GROUPS[role], name=name)]
    for role, point in points:
        module = _imported(name, point.module)
        yield role, name, module, _part(name, module, point.attr)
    if points:
        return
    path, _, attribute = name.partition(":")
    module = _imported(name, path)
    if attribute:
        value = _part(name, module, attribute)
        yield "source" if hasattr(value, "__getitem__") else "op", attribute.rpartition(".")[2], module, value
        return
    lists: dict[Role, Any] = {role: getattr(module, _GROUPS[role].replace(".", "_"), {}) for role in ROLES}
    if not any(lists.values()) or not all(isinstance(each, Mapping) for each in lists.values()):
        raise PluginError(
            f'plug-in {name!r}: module {path} lists no plug-ins. Set prepserver_ops = {{"name": function}} or '
            f'prepserver_sources = {{"name": Dataset}} in it, or name one object as "{path}:OBJECT"'
        )
    for role, each in lists.items():
        for inner, value in each.items():
            yield role, str(inner), module, value


def _imported(name: str, module: str) -> ModuleType:
    try:
        if module.partition(".")[0] == "__main__":
            raise ImportError(
                "what a notebook defines has no file to import: write the cell to one (%%writefile my_ops.py) and name "
                "that module; in a script, name the script's module: 'train:Data' for Data in train.py"
            )
        return importlib.import_module(module)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - this runs the operator's code
        frames = traceback.extract_tb(e.__traceback__)[1:]
        inside = [each for each in frames if not each.filename.startswith(("<frozen", str(importlib.__file__)))]
        own = _own_lines(inside)
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        remedy = ". Name an entry point, module or module:object that is installed beside prepserver or on $PYTHONPATH"
        raise PluginError(
            f"plug-in {name!r} cannot be imported: {type(e).__name__}: {e}{where}"
            f"{'' if inside and not isinstance(e, ImportError) else remedy}"
        ) from (e if inside or isinstance(e, SyntaxError) else None)  # the text is enough if the module is missing


def _part(name: str, module: ModuleType, attribute: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise PluginError(f"plug-in {name!r}: module {module.__name__} has no {attribute}")
        value = getattr(value, part)
    return value


def _code_of(module: ModuleType) -> tuple[str, str]:
    """Digest and origin of a module's code.

    The digest covers the module's file, the files of the same top-level package that it imports, directly or
    indirectly, and names and versions of its distributions. Other modules that this process has imported do not count,
    because a training script may import more of the package than a daemon.
    """
    top = module.__name__.partition(".")[0]
    parts = [
        f"{each}=={metadata.version(each)}" for each in sorted(set(metadata.packages_distributions().get(top, ())))
    ]
    origin = ", ".join([*parts, str(getattr(module, "__file__", None) or module.__name__)])
    files: dict[str, Path] = {}
    todo = [module.__name__]
    while todo:
        name = todo.pop()
        file = _file_of(name) if name.partition(".")[0] == top and name not in files else None
        if file is not None:
            files[name] = file
            todo += [name.rpartition(".")[0], *_names_in(name, file)]
    parts += [f"{name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for name, file in sorted(files.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32], origin


def _file_of(name: str) -> Path | None:
    """The file of a module; None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # noqa: BLE001 - the name may be a function's, and a package that it lies in may raise
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _names_in(name: str, file: Path) -> Iterator[str]:
    """Names in a module's import statements: of modules, and of objects in modules."""
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())) if file.suffix == ".py" else ():
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{each.name}" for each in node.names))
