"""Starts the bridge for the daemon, which must not import Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from prepserver.config import Settings
from prepserver.worker.launch import Zygote


class Bridge(Zygote):
    """The process of `prepserver.engine.bridge`.

    Args:
        address: See `Settings.ray_address`.
        more: As for `Zygote`.
    """

    name: ClassVar[str] = "the bridge to Ray"
    program: ClassVar[str] = "prepserver.engine.bridge"

    def __init__(self, address: str, *more: Any) -> None:
        super().__init__(*more)
        self._more += ["--address", address]


def bridge_of(settings: Settings) -> Callable[[], Bridge] | None:
    """Makes the bridge that the settings ask for; None if they ask for none."""
    if settings.engine != "ray":
        return None
    return lambda: Bridge(
        settings.ray_address, settings.nice, settings.log_level.upper(), "off", settings.plugins, settings.plugin_read,
        settings.url_roots, settings.sample_timeout_s / 2, settings.log_format,
    )  # fmt: skip
