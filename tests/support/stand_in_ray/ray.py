"""As much of Ray as the bridge uses, in the bridge's own process: for machines on which Ray is not installed.

Each call of an actor has a thread. Its machine's name is its number. While there is a file ``ADDRESS.blind``, new
actors can open no dataset.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

__version__ = "0.0 (a stand-in)"

_numbers = itertools.count(1)
_blind: Path | None = None


class RayActorError(Exception):
    """The actor has ended."""


class ActorUnavailableError(RayActorError):
    """Nobody knows whether the actor has ended."""


exceptions = types.SimpleNamespace(RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError)
util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")


class _Method:
    def __init__(self, actor: _Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._actor.call(lambda made: getattr(made, self._name)(*arguments))


class _Actor:
    def __init__(self, cls: type, arguments: tuple[Any, ...]) -> None:
        self._made: Future[Any] = Future()
        self._pending: set[Future[Any]] = set()
        self._dead = False
        threading.Thread(target=self._live, args=(cls, arguments), daemon=True).start()

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    def call(self, what: Callable[[Any], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._pending.add(answer)
        threading.Thread(target=self._answer, args=(what, answer), daemon=True).start()
        if self._dead:
            self.end()
        return answer

    def end(self) -> None:
        self._dead = True
        for answer in list(self._pending):
            with contextlib.suppress(InvalidStateError):  # it has just been given
                answer.set_exception(RayActorError("the actor is dead because its node has died"))

    def _live(self, cls: type, arguments: tuple[Any, ...]) -> None:
        try:
            made = cls(*arguments)
            made._host = f"machine-{next(_numbers)}"
            if _blind is not None and _blind.exists():
                made._worker.open = lambda _stream: "the dataset is not mounted"
            self._made.set_result(made)
        except Exception as e:  # noqa: BLE001 - who calls it gets it
            self._made.set_exception(e)

    def _answer(self, what: Callable[[Any], Any], answer: Future[Any]) -> None:
        try:
            result = what(self._made.result())
        except Exception as e:  # noqa: BLE001 - the caller gets it
            with contextlib.suppress(InvalidStateError):  # the actor was ended
                answer.set_exception(e)
        else:
            with contextlib.suppress(InvalidStateError):
                answer.set_result(result)
        self._pending.discard(answer)


def init(address: str, **_options: Any) -> None:
    """Connects to the cluster of `address`, the path of a file, if that is there."""
    global _blind
    if not Path(address).exists():
        raise ConnectionError(f"nothing listens at {address}")
    _blind = Path(f"{address}.blind")


def remote(**_options: Any) -> Callable[[type], Any]:
    return lambda cls: types.SimpleNamespace(remote=lambda *arguments: _Actor(cls, arguments))


def put(value: Any) -> Any:
    return value


def wait(refs: list[Future[Any]], timeout: float) -> tuple[list[Future[Any]], list[Future[Any]]]:
    done, pending = concurrent.futures.wait(refs, timeout)
    return list(done), list(pending)


def get(ref: Future[Any]) -> Any:
    return ref.result()


def kill(actor: _Actor) -> None:
    actor.end()
