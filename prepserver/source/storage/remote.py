"""Objects on the network, by obstore: Amazon S3 and compatible stores, Google Cloud Storage, Azure, web servers.

A process has one link. Its threads keep up to 64 reads in flight, begun when a chunk is queued (`Link.want`) and waited
for when a sample is made (`Link.read`). Threads cost half the CPU time of an event loop here. obstore repeats a failed
request with growing pauses, for half of the deadline of a read. A store that fails so, or does not answer for a whole
deadline, is down: until it answers, reads in flight continue, but nobody waits for them, so a chunk of a dead bucket
takes one deadline and not one for each sample.

Credentials come from the environment of the daemon, where obstore finds them. No error quotes a library's text about a
request, because its URL may be signed.

The module is long because the link's methods share its threads, its stores and the health of each store.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from prepserver.pipeline.urls import lies_below, split
from prepserver.source.errors import SampleError, SourceError, library
from prepserver.source.roots import OutsideRootsError
from prepserver.source.storage.threads import Call, Threads

S = TypeVar("S")
T = TypeVar("T")

IN_FLIGHT = 64  # most reads in flight of one process
HELD_BYTES = 256 << 20  # most bytes of reads that were begun early and not used yet

_HELD = 4 * IN_FLIGHT
_UNKNOWN_BYTES = 1 << 20  # counted for a read whose size is not known yet
_DOWN_WAIT_S = 0.25
_DEADLINE_S = 15.0
_MOST_RETRIES = 1000  # more than there is time for

_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_WEB = ("https", "http")
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_NOWHERE = "127.0.0.1:0"

ANY_REDIRECT = "PREPSERVER_REDIRECTS"  # in the environment, "any": redirects of web servers may lead anywhere

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_NAME = re.compile(r'Path ("[^"\n]{1,200}")')
_UNAVAILABLE = ("5", "429")


class RemoteError(SampleError):
    """An object cannot be read; the reason does not name it."""


class Unavailable(RemoteError):
    """The store serves no request at present."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What this process may read, None for anything, and how long a read may take."""

    roots: tuple[str, ...] | None = None
    deadline_s: float = _DEADLINE_S


_rules = _Rules()
_link: Link | None = None
_making_link = threading.Lock()


def configure(roots: Sequence[str], deadline_s: float) -> None:
    """Set what this process and its children may read: only URLs below `roots`, which are canonical.

    A read takes at most `deadline_s`, retries included.
    """
    global _rules  # a process has one network
    _rules = _Rules(tuple(roots), deadline_s)


def load() -> Any:
    """Import obstore, or raise `SourceError`; no thread starts before the first read."""
    library("obstore.store", "reading it needs obstore", "remote")
    return library("obstore", "reading it needs obstore", "remote")


def check_allowed(url: str) -> None:
    """Raise `OutsideRootsError` if a URL does not lie below what the configuration names."""
    roots = _rules.roots
    if roots is not None and not lies_below(url, roots):
        raise OutsideRootsError(
            f"{url} does not lie below the URLs that the server reads: {', '.join(roots) or 'there are none'}. "
            f"Have it named there (roots under [sources] in the server's --config, or --root {split(url)[0]}), and "
            "start the server again"
        )


def version_of(meta: Mapping[str, Any]) -> int:
    """Return a number that changes with an object, from its metadata; 0 if the store gives no tag and no time."""
    tag = (meta.get("e_tag") or "").removeprefix("W/").strip('"')
    modified: datetime.datetime = meta["last_modified"]
    if not tag and not modified.timestamp():
        return 0
    return int.from_bytes(hashlib.sha256((tag or modified.isoformat()).encode()).digest()[:8]) >> 1


class RemoteRead(NamedTuple):
    """A read."""

    url: str  # the object
    offset: int = 0  # where the range begins
    length: int = -1  # bytes of the range; -1 for the whole object
    size: int = -1  # bytes of the object when it was listed; -1 if that is unknown
    version: int = 0  # see `version_of`; 0 if it is unknown

    @property
    def nbytes(self) -> int:
        """Bytes that it returns, or a guess."""
        return next((n for n in (self.length, self.size) if n >= 0), _UNKNOWN_BYTES)


@dataclass(slots=True)
class _Begun:
    call: Call[bytes | RemoteError]
    nbytes: int
    uses: int


class Link:
    """The reads of this process, whose owner thread uses `want` and `read`; raises `SourceError` without obstore."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._obstore = load()
        self._rules = _rules
        self._stores: dict[str, Any] = {}
        self._down: dict[str, str] = {}  # why
        self._answered_s: dict[str, float] = {}
        self._begun: OrderedDict[RemoteRead, _Begun] = OrderedDict()
        self._making = threading.Lock()
        self._reading = Threads(IN_FLIGHT)
        self._listing = ThreadPoolExecutor(IN_FLIGHT, "remote")  # which Python joins when it ends

    def want(self, reads: Iterable[RemoteRead]) -> None:
        """Begin reads that will be needed soon, within the bounds; `read` must be called once for each."""
        held = sum(each.nbytes for each in self._begun.values())
        for wanted in reads:
            begun = self._begun.get(wanted)
            if begun is not None:
                begun.uses += 1
                if isinstance(begun.call.answer, RemoteError):
                    begun.call = self._reading.begin(partial(self._get, wanted))  # left over from a sample that failed
                continue
            # The oldest may be left over from a chunk that another worker got.
            while self._begun and (len(self._begun) >= _HELD or held + wanted.nbytes > HELD_BYTES):
                first = next(iter(self._begun))
                if self._begun[first].call.answer is None:
                    return
                held -= self._begun.pop(first).nbytes
            if self._rules.roots is None or lies_below(wanted.url, self._rules.roots):
                self._begun[wanted] = _Begun(self._reading.begin(partial(self._get, wanted)), wanted.nbytes, 1)
                held += wanted.nbytes

    def has_begun(self, wanted: RemoteRead) -> bool:
        """Say whether a read has begun, and `read` has yet to be called for it.

        A read that has failed counts only while its store is down: several samples may share it, and each needs its own
        verdict.
        """
        begun = self._begun.get(wanted)
        if begun is None:
            return False
        return not isinstance(begun.call.answer, RemoteError) or split(wanted.url)[0] in self._down

    def has_arrived(self, wanted: RemoteRead) -> bool:
        """Say whether a read that has begun has ended."""
        begun = self._begun.get(wanted)
        return begun is not None and begun.call.answer is not None

    def read(self, wanted: RemoteRead, limit_bytes: int) -> bytes:
        """Return the bytes of a read, which may have begun before.

        Raises:
            RemoteError: They do not arrive in time, have changed, or are more than the limit.
            OutsideRootsError: The configuration does not name the object.
        """
        begun = self._begun.get(wanted)
        if begun is not None:
            begun.uses -= 1
            if not begun.uses:
                del self._begun[wanted]
            call = begun.call
        else:
            check_allowed(wanted.url)
            call = self._reading.begin(partial(self._get, wanted, limit_bytes))
        if (found := call.answer) is None:
            found = self._awaited(call, split(wanted.url)[0])
        return _good(found)

    def _awaited(self, call: Call[bytes | RemoteError], name: str) -> bytes | RemoteError:
        """Return the answer of a store, or why there is none."""
        began_s, why = time.monotonic(), self._down.get(name)
        found = call.wait(self._rules.deadline_s if why is None else _DOWN_WAIT_S)
        if found is None:
            found = RemoteError(f"{why}, and nothing since")
            if why is None:
                found = RemoteError(f"no answer in {self._rules.deadline_s:g} s, half of sample_timeout_s")
                self._note_down(name, began_s, found.reason)
        return found

    def each(self, work: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """Do work that waits for answers in the threads of the link."""
        return list(self._listing.map(work, items))

    def get(self, wanted: RemoteRead) -> bytes:
        """Read in the calling thread, for a listing; raises as `read`."""
        check_allowed(wanted.url)
        return _good(self._get(wanted))

    def status(self, url: str) -> tuple[int, int]:
        """Return size and version of an object; raises as `read`."""
        check_allowed(url)
        store, key = split(url)
        meta = _good(self._answer(store, lambda: self._obstore.head(self.store(store), key)))
        return meta["size"], version_of(meta)

    def listed(self, url: str, deep: bool) -> Iterator[tuple[list[str], list[Mapping[str, Any]]]]:
        """Yield the folders (unless `deep`) and the objects below a URL, part by part; keys are whole.

        Raises:
            RemoteError: They cannot be listed.
            OutsideRootsError: The configuration does not name it.
        """
        check_allowed(url)
        name, key = split(url)
        if not name.startswith(tuple(_ALLOW_HTTP)):
            raise RemoteError(
                "a web server cannot list its files: name them, by braces or in a list for FileList, or name the index "
                "of a packed dataset"
            )
        try:
            store = self.store(name)
            if deep:
                for objects in self._obstore.list(store, key or None):
                    yield [], list(objects)
            else:
                found = self._obstore.list_with_delimiter(store, key or None)
                yield list(found["common_prefixes"]), list(found["objects"])
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - as in `_answer`
            raise self._failed(error) from None

    def store(self, name: str) -> Any:
        """Return the store of a name such as ``s3://bucket``, made once."""
        with self._making:
            store = self._stores.get(name)
            if store is None:
                store = self._stores[name] = self._made(name)
            return store

    def _made(self, name: str) -> Any:
        scheme = name.partition(":")[0]
        limit = datetime.timedelta(seconds=self._rules.deadline_s)
        options = {
            "timeout": limit,
            "connect_timeout": min(limit, datetime.timedelta(seconds=5)),
            "read_timeout": limit / 2,  # a stalled answer is asked for again
            "allow_http": scheme == "http" or os.environ.get(_ALLOW_HTTP.get(scheme, ""), "").lower() in ("1", "true"),
        }
        if scheme in _WEB:
            options |= self._bounded()
        stores = self._obstore.store
        make = stores.HTTPStore.from_url if scheme in _WEB else stores.from_url
        # It gives up before the deadline, so that the error says what the store answered.
        retry = {"max_retries": _MOST_RETRIES, "retry_timeout": limit / 2, "backoff": {"max_backoff": limit / 5}}
        try:
            return make(name, client_options=options, retry_config=retry)
        except Exception:  # noqa: BLE001 - as in `_answer`; what it says may show a key
            raise RemoteError("the server's environment has wrong settings for it, such as a broken key") from None

    def _bounded(self) -> dict[str, str]:
        """Return options that keep redirects of web servers on hosts that the configuration names.

        obstore cannot be told not to follow redirects. So it gets a proxy that leads nowhere, for all hosts but those.
        """
        proxies = any(os.environ.get(name) for each in _PROXIES for name in (each, each.lower()))
        if self._rules.roots is None or proxies or os.environ.get(ANY_REDIRECT) == "any":
            return {}
        hosts = {urlsplit(root).hostname or "" for root in self._rules.roots if root.startswith(_WEB)}
        return {"proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join(sorted(hosts))}

    def _get(self, wanted: RemoteRead, limit_bytes: int = HELD_BYTES) -> bytes | RemoteError:
        name, key = split(wanted.url)

        def ask() -> bytes:
            end = wanted.offset + wanted.length
            options = {"range": (wanted.offset, end)} if wanted.length >= 0 else None
            found = self._obstore.get(self.store(name), key, options=options)
            size, version = found.meta["size"], version_of(found.meta)
            changed = (wanted.version and version != wanted.version) or (wanted.size >= 0 and size != wanted.size)
            if changed:
                raise RemoteError("it has changed since the dataset was listed")
            if wanted.length < 0 and size > limit_bytes:
                raise RemoteError(
                    f"{size} bytes are more than the limit of {limit_bytes} for an object that is read whole"
                )
            data: bytes = found.bytes().to_bytes()
            return data

        return self._answer(name, ask)

    def _answer(self, name: str, ask: Callable[[], T]) -> T | RemoteError:
        """Return a store's answer, or the error; it is not raised.

        A raised error would hold its traceback, and with it a cycle; workers collect garbage rarely.
        """
        began_s = time.monotonic()
        answer: T | RemoteError
        try:
            answer = ask()
        except RemoteError as error:
            answer = RemoteError(error.reason)
        except Exception as error:  # noqa: BLE001 - obstore has many, and its runtime more
            answer = self._failed(error)
        if isinstance(answer, Unavailable):
            self._note_down(name, began_s, answer.reason)
        else:
            self._answered_s[name] = time.monotonic()
            self._down.pop(name, None)
        return answer

    def _note_down(self, name: str, since_s: float, why: str) -> None:
        if self._answered_s.get(name, -1.0) < since_s:
            self._down[name] = why

    def _failed(self, error: Exception) -> RemoteError:
        """Translate an error of obstore."""
        text = str(error)
        status, code = _STATUS.search(text), _CODE.search(text)
        if "169.254.169.254" in text:
            made = RemoteError("the server's environment holds no credentials for it")
        elif f"{_NOWHERE}," in text:
            made = RemoteError(
                "it is redirected to a host that the server does not read: if you trust that host, add it to the roots "
                "under [sources]"
            )
        elif status is not None:
            said = status[1].strip() + (f" ({code[1]})" if code is not None else "")
            made = (Unavailable if said.startswith(_UNAVAILABLE) else RemoteError)(f"the store answers {said}")
            if said.startswith("404"):
                made.errno = errno.ENOENT
        elif isinstance(error, self._obstore.exceptions.NotSupportedError):
            made = RemoteError("the store does not serve parts of it (HTTP ranges), which reading needs")
        elif isinstance(error, ValueError):
            made = RemoteError("the store does not accept its name")
        elif isinstance(error, self._obstore.exceptions.InvalidPathError):
            name = _NAME.search(text)
            made = RemoteError(
                f"an object below it cannot be read{f', {name[1]}' if name is not None else ''}: no part of its name "
                "between slashes may be empty, . or ..; rename it"
            )
        elif "InvalidCertificate" in text:
            made = Unavailable("the store's certificate is not trusted here")
        else:
            made = Unavailable("the store cannot be reached, or breaks off its answers")
        return made


def _good(answer: T | RemoteError) -> T:
    if isinstance(answer, RemoteError):
        raise answer
    return answer


def link() -> Link:
    """Return the link of this process, made at its first use.

    Raises:
        SourceError: obstore is not installed, or a parent of this process has a link, whose threads it lacks.
    """
    global _link  # a process has one network
    if _link is None:
        with _making_link:
            if _link is None:
                _link = Link()
    if _link.pid != os.getpid():
        # obstore would wait for ever for threads that were not forked.
        raise SourceError("this process was forked from one that has read from the network: start it by spawn instead")
    return _link
