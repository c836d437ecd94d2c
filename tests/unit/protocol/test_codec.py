"""Bytes to messages: whatever arrives is a valid message or a ProtocolError, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import example, given, settings

from prepserver.protocol import messages, work
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode, encode
from prepserver.protocol.schema import MAX_DEPTH, ProtocolError

EVERY: dict[str, Mapping[str, type]] = {
    name: table
    for room in (messages, work)
    for name, table in vars(room).items()
    if name.startswith(("TO_", "FROM_")) and isinstance(table, dict)
}
TABLES = st.sampled_from([EVERY[name] for name in sorted(EVERY)])

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**33), st.integers(0, 10**9 - 1)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.binary(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def attach(**changed: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "job": "j", "source": {"source": "synthetic"}, "shuffle": "full",
        "seed": 1, "pipeline": [{"op": "decode"}], "batch_size": 4, "drop_last": False, "rank": 0, "world_size": 1,
    }  # fmt: skip
    return fields | changed


def taken(data: bytes, table: Mapping[str, type]) -> Any:
    """The message, or None where it was refused by name."""
    try:
        message = decode(data, table)
    except ProtocolError as e:
        said = str(e)
        assert said
        return None
    assert type(message) in table.values()
    return message


@given(st.binary(max_size=200), TABLES)
@example(msgpack.packb({"t": "Bye", b"x": 1, "y": 2}), messages.TO_LEASE)
@example(msgpack.packb({b"t": "Bye"}), messages.TO_LEASE)
@example(b"\xdd\xff\xff\xff\xff", messages.TO_DAEMON)
@example(b"\x91" * 3000, messages.TO_DAEMON)
@example(b"\xd6\xff\xff\xff\xff\xff", messages.TO_DAEMON)
@example(b"\xc7\x0c\xff" + b"\xff" * 12, messages.TO_DAEMON)
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes, table: Mapping[str, type]) -> None:
    message = taken(data, table)
    assert message is None or taken(encode(message), table) == message


@given(PLAIN, TABLES)
@settings(deadline=None, max_examples=300)
def test_any_msgpack_value_is_a_message_or_a_protocol_error(value: Any, table: Mapping[str, type]) -> None:
    message = taken(msgpack.packb(value), table)
    assert message is None or taken(encode(message), table) == message


@given(st.data(), TABLES)
@settings(deadline=None, max_examples=300)
def test_any_values_are_a_message_or_a_protocol_error(data: st.DataObject, table: Mapping[str, type]) -> None:
    """The names of the fields are right, the values anything."""
    cls = table[data.draw(st.sampled_from(sorted(table)))]
    fields = {f.name: data.draw(PLAIN) for f in dataclasses.fields(cls)}
    message = taken(msgpack.packb({"t": cls.__name__, **fields}), table)
    assert message is None or dataclasses.is_dataclass(message)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_an_attach_with_a_hostile_field_is_taken_or_names_it(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(messages.Attach)]))
    packed = msgpack.packb({"t": "Attach", **attach(**{name: data.draw(PLAIN)})})
    try:
        decode(packed, messages.TO_DAEMON)
    except ProtocolError as e:
        said = str(e)
        # duplicate keys and extensions are refused before the message has a name
        assert name in said or "msgpack" in said or "key" in said
    else:
        assert packed


@pytest.mark.parametrize(
    "message",
    [
        messages.Attach(**attach(local_ranks=(0, 2), position=2**62, epoch_start=0)),
        messages.Ready(2**62, [(0, 3, "a.jpg: no"), (2**62, 0, "")]),
        messages.Refused("spec", "é" * 100, None),
        messages.Release(5, 10**15, 7, 10**15, 10**14),
        messages.Welcome(3, 10, 2, "d", 0, 4, 0, {"rows": 4, "fields": []}),
        work.Fill(1, 2, [3, 4], 5, 1024),
        work.Filled(1, [(5, 6, "r", []), (6, 7, "s", [1, 2])], 10, 20, 5, [1, 4], [0, 7, 0, 8], 10**15),
        work.Exited(2**48, -9),
    ],
)
def test_a_message_comes_back_as_it_went(message: Any) -> None:
    tables = [t for t in EVERY.values() if type(message) in t.values()]
    assert tables
    for table in tables:  # a refusal takes lease and line
        assert decode(encode(message), table) == message
        assert decode(memoryview(encode(message)), table) == message


def test_a_message_of_the_largest_size_is_sent_and_no_larger() -> None:
    def refused(length: int) -> bytes:
        return encode(messages.Refused("c", "x" * length))

    spare = MAX_MESSAGE_BYTES - len(refused(60000))
    assert len(refused(60000 + spare)) == MAX_MESSAGE_BYTES
    with pytest.raises(ProtocolError, match=r"Refused has 65537 bytes; the limit is 65536"):
        refused(60001 + spare)


def test_too_many_bytes_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(ProtocolError, match="65537 bytes"):
        decode(b"\xc1" * (MAX_MESSAGE_BYTES + 1), messages.TO_DAEMON)


def test_a_key_that_appears_twice_is_refused() -> None:
    twice = b"\x83" + msgpack.packb("t") + msgpack.packb("Bye") + 2 * (msgpack.packb("upto") + b"\x01")
    with pytest.raises(ProtocolError, match="twice"):
        decode(twice, messages.TO_DAEMON)


@pytest.mark.parametrize("extension", [msgpack.ExtType(5, b""), msgpack.Timestamp(1, 2)])
def test_extensions_are_refused(extension: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(msgpack.packb({"t": "Bye", "upto": extension}), messages.TO_LEASE)


def test_a_message_of_the_other_direction_is_unknown() -> None:
    """The error names the known ones."""
    with pytest.raises(
        ProtocolError, match="unknown message 'Ready'; expected one of AskLogs, AskStatus, AskStop, Attach, Release"
    ):
        decode(encode(messages.Ready(1)), messages.TO_DAEMON)


def test_keys_are_short_so_that_the_text_of_an_error_is() -> None:
    # a path is built for every item: a long key above many items would cost the daemon a copy of it for each
    hostile = attach(source={"k" * 30000: [0] * 20000})
    with pytest.raises(ProtocolError, match="characters") as e:
        decode(msgpack.packb({"t": "Attach", **hostile}), messages.TO_DAEMON)
    assert len(str(e.value)) < 1000


@pytest.mark.parametrize("fields", [{"k" * 30000: 1}, {b"x": 1, "y": 2}, {b"x" * 60000: 1}])
def test_unknown_keys_of_any_type_are_refused_in_a_short_text(fields: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError, match="unknown field") as e:
        decode(msgpack.packb({"t": "AskStop", **fields}), messages.TO_DAEMON)
    assert len(str(e.value)) < 1000


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_a_spec_may_nest_to_a_bound(depth: int) -> None:
    tree: Any = 0
    for _ in range(depth):
        tree = {"a": tree}
    packed = msgpack.packb({"t": "Attach", **attach(source=tree)})
    if depth <= MAX_DEPTH:
        assert decode(packed, messages.TO_DAEMON).source == tree
    else:
        with pytest.raises(ProtocolError, match=f"nested deeper than {MAX_DEPTH}"):
            decode(packed, messages.TO_DAEMON)


def test_as_many_bad_rows_as_a_task_has_fit_one_message() -> None:
    bad: list[tuple[int, int, str, list[int]]] = [(2**62, 2**48, "", []) for _ in range(work.MAX_CHUNK_ROWS)]
    assert (
        len(encode(work.Filled(2**48, bad, 2**62, 2**62, 2**62, [2**62] * 64, [2**62] * 256, 2**62)))
        <= MAX_MESSAGE_BYTES
    )


@pytest.mark.parametrize("released", [2**64, object()])
def test_what_msgpack_cannot_hold_is_refused_by_its_message(released: Any) -> None:
    with pytest.raises(ProtocolError, match="Bye cannot be sent"):
        encode(messages.Bye(released))


def test_the_removed_way_of_lagging_names_what_to_use() -> None:
    assert messages.lag_error("wait") is None
    assert messages.lag_error("never") == "lag = 'never' is not one of 'auto', 'wait', 'detach'"
    assert "'skip' lost batches and was removed. With 'detach'" in (messages.lag_error("skip") or "")
