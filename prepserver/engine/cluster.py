"""Connects to a Ray cluster. Only the bridge, its actors and `prepserver doctor` import Ray."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import prepserver
from prepserver import plugins
from prepserver.worker.launch import ONE_THREAD


def connect(address: str) -> Any:
    """Connects to a cluster (`Settings.ray_address`), and has Ray copy this package to its machines; returns `ray`."""
    # Ray would leave out what .gitignore names, such as the compiled kernels of a checkout.
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"
    import ray

    ray.init(
        address=address, log_to_driver=False, logging_level=logging.WARNING,
        runtime_env={"py_modules": _modules(), "env_vars": ONE_THREAD, "excludes": ["__pycache__"]},
    )  # fmt: skip
    return ray


def _modules() -> list[str]:
    """The modules that Ray copies to the other machines: this package, and plug-ins that are not installed."""
    found = {str(Path(prepserver.__file__).parent)}
    for each in plugins.loaded():
        module: ModuleType | None = sys.modules.get(getattr(each.value, "__module__", "").partition(".")[0])
        file = getattr(module, "__file__", None)
        if file is not None and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            found.add(str(Path(file).parent if Path(file).name == "__init__.py" else file))
    return sorted(found)


def address_here() -> str:
    """The address of this machine in the cluster; in an actor only."""
    import ray

    return str(ray.util.get_node_ip_address())
