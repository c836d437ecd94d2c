"""An object store with a delay: ``python -m bench.harness.slow_store LATENCY_S`` gives out files as objects.

It speaks as much of S3's HTTP as reading needs. A key is the path of a file on this machine. Whole answers stay in
memory, so that a request costs this machine as little CPU as possible: a real store is another machine. It prints its
port.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote


@cache
def _answer(target: bytes) -> bytes:
    body = Path("/", unquote(target.decode().split("/", 2)[2])).read_bytes()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: \"1\"\r\n"
        b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n%b" % (len(body), body)
    )  # fmt: skip


class _Store(asyncio.Protocol):
    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        while (end := self._asked.find(b"\r\n\r\n")) >= 0:
            head, self._asked = self._asked[:end], self._asked[end + 4 :]
            answer = _answer(head.split(b" ", 2)[1])
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, answer)


async def serve(latency_s: float) -> None:
    """Serves until it is killed."""
    server = await asyncio.get_running_loop().create_server(lambda: _Store(latency_s), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
