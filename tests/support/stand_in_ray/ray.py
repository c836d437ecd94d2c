"""As much of Ray as the bridge uses, in the bridge's own process: for machines on which Ray is not installed.

Each actor has a thread, which runs its calls one after the other. Its machine's name is its number.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import queue
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

__version__ = "0.0 (a stand-in)"

_numbers = itertools.count(1)


class RayActorError(Exception):
    """The actor has ended."""


class ObjectLostError(Exception):
    """No machine has the object any more."""


exceptions = types.SimpleNamespace(RayActorError=RayActorError, ObjectLostError=ObjectLostError)


class _Method:
    def __init__(self, actor: _Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._actor.call(lambda made: getattr(made, self._name)(*arguments))


class _Actor:
    def __init__(self, cls: type, arguments: tuple[Any, ...]) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]]] = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._dead = False
        threading.Thread(target=self._live, args=(cls, arguments), daemon=True).start()

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    def call(self, what: Callable[[Any], Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        self._pending.add(answer)
        self._calls.put((what, answer))
        if self._dead:
            self.end()
        return answer

    def end(self) -> None:
        self._dead = True
        for answer in list(self._pending):
            if not answer.done():
                answer.set_exception(RayActorError("the actor is dead because its node has died"))

    def _live(self, cls: type, arguments: tuple[Any, ...]) -> None:
        made = cls(*arguments)
        made._host = f"machine-{next(_numbers)}"
        while not self._dead:
            what, answer = self._calls.get()
            try:
                result = what(made)
                if isinstance(result, tuple) and len(result) == 3 and result[1] is not None:
                    result = (result[0], result[1].copy(), result[2])  # as it would go through Ray's store
            except Exception as e:  # noqa: BLE001 - the caller gets it
                if not answer.done():
                    answer.set_exception(e)
            else:
                if not answer.done():
                    answer.set_result(result)
            self._pending.discard(answer)


def init(address: str, **_options: Any) -> None:
    """Connects to the cluster of `address`, the path of a file, if that is there."""
    if not Path(address).exists():
        raise ConnectionError(f"nothing listens at {address}")


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
