"""The filter for both machine types, run as the kernel would run it."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from prepserver.worker.sandbox import NETWORK_CALLS
from prepserver.worker.seccomp import MACHINES, program

PID = 4711
ALLOW, KILL = "allow", "kill"

NUMBERS = {  # of x86-64, of aarch64
    "read": (0, 63), "openat": (257, 56), "pread64": (17, 67), "mmap": (9, 222), "recvmsg": (47, 212),
    "sendto": (44, 206), "futex": (202, 98), "landlock_restrict_self": (446, 446), "exit_group": (231, 94),
    "execve": (59, 221), "socket": (41, 198), "connect": (42, 203), "ptrace": (101, 117), "utimensat": (280, 88),
    "io_uring_setup": (425, 425), "clone3": (435, 435), "clone": (56, 220), "tgkill": (234, 131), "kill": (62, 129),
    "prlimit64": (302, 261), "fcntl": (72, 25), "prctl": (157, 167), "truncate": (76, 45), "openat2": (437, 437),
}  # fmt: skip


def verdict(code: bytes, machine: int, number: int, *arguments: int) -> str:
    data = struct.pack("=IIQ6Q", number, machine, 0, *(*arguments, *[0] * 6)[:6])
    value, at = 0, 0
    while True:
        op, if_true, if_false, operand = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        match op:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, operand)
            case 0x15 | 0x35 | 0x45:
                yes = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[op]
                at += if_true if yes else if_false
            case 0x06:
                if operand >> 16 == 5:
                    return errno.errorcode[operand & 0xFFFF]
                return {0x7FFF0000: ALLOW, 0x80000000: KILL}[operand]
            case _:
                raise AssertionError(f"no such instruction: {op:#x}")


@pytest.fixture(params=list(MACHINES))
def ask(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    code = program(request.param, PID)
    column = list(MACHINES).index(request.param)
    return lambda name, *arguments: verdict(code, MACHINES[request.param], NUMBERS[name][column], *arguments)


@pytest.mark.parametrize(
    "name", ["read", "openat", "pread64", "mmap", "recvmsg", "sendto", "futex", "landlock_restrict_self", "exit_group"]
)
def test_what_decoding_needs_is_allowed(ask, name: str) -> None:  # type: ignore[no-untyped-def]
    assert ask(name) == ALLOW


@pytest.mark.parametrize("name", ["execve", "socket", "connect", "ptrace", "utimensat", "io_uring_setup"])
def test_what_it_does_not_need_is_refused(ask, name: str) -> None:  # type: ignore[no-untyped-def]
    assert ask(name) == "EPERM"


def test_threads_can_be_started_and_processes_cannot(ask) -> None:  # type: ignore[no-untyped-def]
    assert ask("clone", 0x3D0F00) == ALLOW
    assert ask("clone", 0x01200011) == "EPERM"
    assert ask("clone3") == "ENOSYS"


@pytest.mark.parametrize("name", ["kill", "tgkill"])
def test_signals_reach_the_process_itself_alone(ask, name: str) -> None:  # type: ignore[no-untyped-def]
    assert ask(name, PID, 6) == ALLOW
    assert ask(name, 1 << 32 | PID, 6) == ALLOW  # the kernel takes the lower half, too
    for other in (0, 1, PID + 1, 2**64 - 1):
        assert ask(name, other, 9) == "EPERM"


def test_limits_commands_and_the_lifeline_are_judged_by_argument(ask) -> None:  # type: ignore[no-untyped-def]
    assert [ask("prlimit64", pid) for pid in (0, PID, 1)] == [ALLOW, ALLOW, "EPERM"]
    assert [ask("fcntl", 3, command) for command in (1, 8, 10, 15)] == [ALLOW, "EPERM", "EPERM", "EPERM"]
    assert [ask("prctl", option) for option in (15, 1)] == [ALLOW, "EPERM"]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("keeps_lengths", [True, False])
def test_no_file_is_shortened_where_landlock_allows_it(machine: str, keeps_lengths: bool) -> None:
    """Landlock before Linux 6.2 lets a process do that to files that it may only read."""
    code, column = program(machine, PID, keeps_lengths=keeps_lengths), list(MACHINES).index(machine)

    def ask(name: str, *arguments: int) -> str:
        return verdict(code, MACHINES[machine], NUMBERS[name][column], *arguments)

    refused = ("EPERM", "ENOSYS") if keeps_lengths else (ALLOW, ALLOW)
    assert [ask("openat", 3, 0, flags) for flags in (0, os.O_CREAT | os.O_EXCL | os.O_RDWR)] == [ALLOW, ALLOW]
    assert {ask("openat", 3, 0, os.O_TRUNC | more) for more in (os.O_RDONLY, os.O_WRONLY)} == {refused[0]}
    assert (ask("truncate"), ask("openat2")) == refused
    if machine == "x86_64":
        assert verdict(code, MACHINES[machine], 2, 0, os.O_TRUNC) == refused[0]


def test_another_machines_convention_kills() -> None:
    x86 = MACHINES["x86_64"]
    assert verdict(program("x86_64", PID), 0x40000003, 11) == KILL  # i386
    assert verdict(program("x86_64", PID), x86, 0x40000000 | 59) == KILL  # x32
    assert verdict(program("aarch64", PID), x86, 0) == KILL


def test_a_call_can_be_left_in() -> None:
    code = program("x86_64", PID, allowed={"utimensat"})
    assert verdict(code, MACHINES["x86_64"], 280) == ALLOW
    assert verdict(code, MACHINES["x86_64"], 41) == "EPERM"


def test_who_reads_from_the_network_makes_internet_sockets_only() -> None:
    for machine, column in (("x86_64", 0), ("aarch64", 1)):
        code = program(machine, PID, allowed=NETWORK_CALLS)
        socket, connect = (NUMBERS[name][column] for name in ("socket", "connect"))
        families = [verdict(code, MACHINES[machine], socket, family) for family in (2, 10, 16, 1, 17)]
        assert families == [ALLOW, ALLOW, ALLOW, "EPERM", "EPERM"]  # the last two: AF_UNIX, AF_PACKET
        assert verdict(code, MACHINES[machine], connect) == ALLOW
        assert verdict(code, MACHINES[machine], NUMBERS["execve"][column]) == "EPERM"
