"""``prepserver metrics``: serves the daemon's figures to Prometheus, from a separate process.

It asks the daemon as `prepserver status` does, at most once a second. So neither a scraper nor the death of this
process disturbs the daemon, and a daemon whose loop hangs counts as down. It serves one connection at a time, each with
a deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.server
import importlib.util
import json
import os
import signal
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepserver.cli import exits
from prepserver.cli.ask import AskError, ask_status

UNIX = "unix:"
_ANSWER_S = 5.0  # half of Prometheus's usual timeout
_SERVED_S = 10.0
"""Deadline for one connection, with its request and its answer."""
_FRESH_S = 1.0
_BACKLOG = 16


class _State:
    """The daemon's last answer; a collector of prometheus_client."""

    def __init__(self, runtime_dir: str | None) -> None:
        self._runtime_dir = runtime_dir
        self._asked_s = float("-inf")
        self.found: dict[str, Any] | None = None
        self.why: AskError | None = None

    def ask(self) -> dict[str, Any] | None:
        """The daemon's state, at most `_FRESH_S` old; None if it does not answer, and `why` says why."""
        if time.monotonic() - self._asked_s >= _FRESH_S:
            try:
                self.found, self.why = ask_status(self._runtime_dir, _ANSWER_S), None
            except AskError as e:
                self.found, self.why = None, e
            self._asked_s = time.monotonic()
        return self.found

    def collect(self) -> Iterator[Any]:
        """See prometheus_client."""
        from prepserver.telemetry.metrics import metrics

        yield from metrics(self.ask())

    def exposed(self, accepts: str) -> tuple[bytes, str]:
        """All metrics in the format that a scraper accepts, and that format's name."""
        from prometheus_client.exposition import choose_encoder

        try:
            encode, kind = choose_encoder(accepts)
        except TypeError:  # the scraper asks for a version that is not a number
            encode, kind = choose_encoder("")
        return encode(self), kind


def metrics(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise exits.CommandError("prometheus-client is missing: pip install 'prepserver[metrics]'")
    state = _State(arguments.runtime_dir)
    if arguments.once:
        text = state.exposed("")[0].decode()
        if state.why is not None:
            raise state.why
        sys.stdout.write(text)
        return exits.OK
    try:
        server = _Server(arguments.listen, state)
    except (OSError, OverflowError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        is_busy = getattr(e, "errno", None) == errno.EADDRINUSE
        raise exits.CommandError(f"--listen {arguments.listen}: {why}", exits.FAILED if is_busy else exits.USAGE) from e
    with server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(exits.OK))  # so that the server removes its socket
        sys.stderr.write(f"prepserver metrics: serving /metrics and /health on {arguments.listen}\n")
        server.serve_forever()
    return exits.OK


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _SERVED_S

    def setup(self) -> None:
        super().setup()
        # `timeout` is for one read: a peer may send a byte now and then.
        self._deadline = threading.Timer(_SERVED_S, _hang_up, (self.connection,))
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        self._deadline.cancel()
        super().finish()

    def do_GET(self) -> None:
        path, state = self.path.partition("?")[0], self.server.state
        if path == "/metrics":
            body, kind = state.exposed(self.headers.get("Accept", ""))
            self._answer(200, kind, body)
        elif path == "/health":
            found = state.ask()
            health = {"state": found["state"] if found is not None else "down", "why": str(state.why or "")}
            is_well = health["state"] == "running"
            self._answer(200 if is_well else 503, "application/json", json.dumps(health).encode() + b"\n")
        else:
            self._answer(404, "text/plain", b"/metrics or /health\n")

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: one line per scrape would be too many."""


class _Server(socketserver.TCPServer):
    """Listens at the address that `--listen` gives.

    Raises:
        ValueError, OSError, OverflowError: It cannot listen there.
    """

    allow_reuse_address = True
    request_queue_size = _BACKLOG

    def __init__(self, listen: str, state: _State) -> None:
        self.state = state
        self._made: tuple[Path, os.stat_result] | None = None  # the socket's file
        host, found, port = listen.rpartition(":")
        if listen.startswith(UNIX):
            path = Path(listen.removeprefix(UNIX))
            _make_way(path)
            self.address_family = socket.AF_UNIX
            mask = os.umask(0o117)  # for owner and group
            try:
                super().__init__(str(path), _Handler)  # type: ignore[arg-type]  # typeshed knows only TCP here
            finally:
                os.umask(mask)
            self._made = path, path.stat()
        elif found and port.isascii() and port.isdigit():
            host = host.strip("[]")
            self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            super().__init__((host, int(port)), _Handler)
        else:
            raise ValueError(f"needs HOST:PORT, such as 127.0.0.1:9477, or {UNIX}PATH")

    def server_close(self) -> None:
        super().server_close()
        if self._made is not None:
            path, made = self._made
            with contextlib.suppress(OSError):
                if os.path.samestat(path.stat(), made):  # somebody may have replaced it
                    path.unlink()

    def handle_error(self, *peer: Any) -> None:
        """Ignores broken connections."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(*peer)


def _make_way(path: Path) -> None:
    """Removes a socket that a killed process has left there."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ValueError("exists and is not a socket: name a new path, such as unix:FOLDER/metrics.sock")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            code = probe.connect_ex(str(path))
        if code in (0, errno.EAGAIN, errno.EPROTOTYPE):  # also with a full queue, or of another type
            code = errno.EADDRINUSE
        if code != errno.ECONNREFUSED:
            raise OSError(code, os.strerror(code))
        path.unlink()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
