"""A real object store on the loopback, and a proxy before it that breaks answers on demand."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from prepserver.source.storage import remote, threads
from tests.support.certificates import server_certificate

SECRET = "never-to-be-shown"
"""Part of the credentials of the environment, which must be in no log and no error."""

_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class ObjectStore:
    """A bucket ``data`` in moto's server, which is another process, behind a proxy, which is threads of this one.

    Attributes:
        faults: What happens to requests, by a part of their path: a status such as 403, ``never``, ``cut`` in the
            middle of the body, ``stall`` there, seconds of delay, or a URL to redirect to. See `mend`.
        asked: Paths of the requests for content so far, in their order.
    """

    bucket = "data"

    def __init__(self) -> None:
        self.faults: dict[str, int | float | str] = {}
        self.asked: list[str] = []
        self._mended = threading.Event()
        self._moto = subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._moto.stdout is not None
        self.upstream = int(self._moto.stdout.readline())
        self._proxies = [_Proxy(self)]
        self.request("PUT", f"/{self.bucket}")

    @property
    def web(self) -> str:
        """The bucket as folders of a web server."""
        return f"http://127.0.0.1:{self._proxies[0].server_port}/{self.bucket}"

    def encrypted(self, folder: Path) -> tuple[str, Path]:
        """Serves the bucket by HTTPS, too; returns its URL, and its certificate authority as a file in a folder."""
        authority, context = server_certificate(folder)
        self._proxies.append(_Proxy(self, context))
        return f"https://127.0.0.1:{self._proxies[-1].server_port}/{self.bucket}", authority

    @property
    def environment(self) -> Mapping[str, str]:
        """For a process that reads from it."""
        return {
            "AWS_ENDPOINT_URL": f"http://localhost:{self._proxies[0].server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": f"id-{SECRET}",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def request(self, method: str, path: str, body: bytes | None = None) -> None:
        """A request past the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream)
        # the header is what makes moto let anybody read it by plain HTTP
        connection.request(method, path, body, {"x-amz-acl": "public-read"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status < 300, (method, path, answer.status)

    def put(self, key: str, content: bytes) -> None:
        """Writes an object."""
        self.request("PUT", f"/{self.bucket}/{quote(key)}", content)

    def upload(self, folder: Path, prefix: str) -> str:
        """Writes all files below a folder; returns their URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{self.bucket}/{prefix}"

    def fault(self, path: str) -> int | float | str | None:
        """What happens to a request."""
        return next((fault for part, fault in self.faults.items() if part in path), None)

    def held(self, path: str) -> tuple[int | float | str | None, Callable[[], object]]:
        """What happens to a request, and what waits until the store is mended."""
        mended = self._mended  # before the fault: `mend` removes that first
        return self.fault(path), mended.wait

    def mend(self) -> None:
        """Removes all faults; requests that got no answer, or a part of one, are hung up on."""
        self.faults.clear()
        mended, self._mended = self._mended, threading.Event()
        mended.set()

    def close(self) -> None:
        """Ends both."""
        self.mend()
        for proxy in self._proxies:
            proxy.close()
        assert self._moto.stdin is not None
        assert self._moto.stdout is not None
        self._moto.stdin.close()
        self._moto.stdout.close()
        self._moto.kill()
        self._moto.wait()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """An object store for a module's tests; what this process read from another one, it no longer knows."""
    store = ObjectStore()
    with pytest.MonkeyPatch.context() as patch:
        for name in remote._PROXIES:  # of the user's
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        try:
            yield store
        finally:
            store.mend()
            end_reads()
            store.close()
            remote._rules = remote._Rules()  # as in a new process; a patch would be undone


def end_reads() -> None:
    """Ends the link of this process with its reads, which no later test meets then; the next one knows nothing."""
    link, remote._link = remote._link, None
    if link is not None:
        link._listing.shutdown()
        threads._end(link._reading._calls, link._reading._threads)


class _Proxy(ThreadingHTTPServer):
    daemon_threads = False  # `close` waits for them: no descriptor of theirs goes in a later test
    request_queue_size = 128  # of 5, a busy machine drops some: a reader asks for many objects at once

    def __init__(self, store: ObjectStore, tls: ssl.SSLContext | None = None) -> None:
        self.store = store
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:  # each connection's own thread shakes hands
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close(self) -> None:
        """Ends it with all connections."""
        self.shutdown()
        for each in list(self._open):
            with contextlib.suppress(OSError):  # the client has hung up
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is what faults make."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for a delayed acknowledgement
    server: _Proxy

    def do_GET(self) -> None:
        store = self.server.store
        if "list-type" not in self.path and self.command == "GET":
            store.asked.append(self.path)
        fault, wait = store.held(self.path)
        if isinstance(fault, float):
            time.sleep(fault)
        elif fault == "never":
            wait()
            self.close_connection = True
            return
        elif isinstance(fault, str) and fault.startswith("http"):
            self._answer(302, {"Location": fault}, b"")
            return
        elif isinstance(fault, int):
            self._answer(fault, {}, b"")
            return
        connection = http.client.HTTPConnection("127.0.0.1", store.upstream)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        self._answer(answer.status, dict(answer.headers), answer.read(), broken=fault in ("cut", "stall"))
        if fault == "stall":
            wait()
        connection.close()

    do_HEAD = do_GET

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes, broken: bool = False) -> None:
        self.send_response_only(status)
        kept = {name: value for name, value in headers.items() if name.lower() not in ("connection", "date")}
        for name, value in ({"Content-Length": str(len(body))} | kept).items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = broken
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if broken else body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
