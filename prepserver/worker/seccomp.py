"""Refuses system calls that a worker does not need, by a filter in the kernel that cannot be removed.

`program` builds the filter for one machine type; `install` gives it to the kernel. The filter lists refused calls and
lets others through, because an allow-list would break with the next libc or torch. A refused call fails with EPERM,
which libraries can handle; only a call by another machine type's convention kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Container, Iterable, Sequence

from prepserver.worker.syscalls import call

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h: AUDIT_ARCH_*

_X32_BIT = 0x40000000  # x86-64's third convention; its numbers would pass a filter of the other two

# Number on x86-64 and on aarch64; None where the call does not exist.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other programs and processes
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    # sockets: the line to the daemon is open already
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # into other processes, by memory, descriptors or priority
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # what Landlock does not control: owners, modes, times and attributes of any file that a path reaches
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262), "open_by_handle_at": (304, 265),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "mount_setattr": (442, 442), "setns": (308, 268),
    "unshare": (272, 97),
    # large and privileged parts of the kernel that no decoder needs
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "personality": (135, 92),
}  # fmt: skip

_INTERNET = (2, 10, 16)  # AF_INET, AF_INET6, and AF_NETLINK, by which libc learns which of them there are

_CLONE, _CLONE_THREAD = (56, 220), 0x00010000
_CLONE3, _OPENAT2 = (435, 435), (437, 437)  # no filter can read their flags, which are in memory
_TRUNCATE, _O_TRUNC = (76, 45), 0o1000
_OPENS = {"openat": ((257, 56), 2), "open": ((2, None), 1)}  # which argument has the flags

# Allowed only where the first argument is this process: signals, and limits (0 means itself there).
_TO_ITSELF = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
              "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261)}  # fmt: skip

# Numbers of the call, the place of the argument that is its command, and the commands that are refused.
_COMMANDS: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    # F_SETOWN, F_SETSIG, F_SETOWN_EX: have a descriptor signal another process
    "fcntl": ((72, 25), 1, (8, 10, 15)),
    # FIOSETOWN, SIOCSPGRP: the same; TIOCSTI, TIOCLINUX: type keys into the daemon's terminal
    "ioctl": ((16, 29), 1, (0x8901, 0x8902, 0x5412, 0x541C)),
    "prctl": ((157, 167), 0, (1,)),  # PR_SET_PDEATHSIG, which ties it to the zygote
}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h: SECCOMP_RET_*

_SYS_SECCOMP = (317, 277)
_SET_MODE_FILTER = 1
# Without it kernels before 5.16 turn speculative stores off for the process, which slows decoding down.
_SPEC_ALLOW = 1 << 2


def program(machine: str, pid: int, allowed: Container[str] = (), *, keeps_lengths: bool = False) -> bytes:
    """The filter of process `pid`, an array of ``struct sock_filter``; the calls `allowed` are left out of it.

    With `keeps_lengths` the process may shorten no file by its path: Landlock before Linux 6.2 does not control that.
    """
    column = list(MACHINES).index(machine)
    code = [_op(_LOAD, _MACHINE), _op(_EQUAL, MACHINES[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        code += [_op(_AT_LEAST, _X32_BIT, 0, 1), _op(_RETURN, _KILL)]
    for name, numbers in _REFUSED.items():
        number = numbers[column]
        if number is not None and name not in allowed:
            code += [_op(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    code += [_op(_EQUAL, _CLONE3[column], 0, 1), _refuse(errno.ENOSYS)]  # as if it did not exist: libc uses clone
    if keeps_lengths:
        code += _keep_lengths(column)
    if "socket" in allowed:
        code += _only_for(_REFUSED["socket"][column] or 0, _among(_INTERNET, 0, inside=True))
    thread = [_argument(0), _op(_ANY_BIT, _CLONE_THREAD, 1, 0), _refuse(errno.EPERM), _op(_RETURN, _ALLOW)]
    code += _only_for(_CLONE[column], thread)
    for name, numbers_of in _TO_ITSELF.items():
        code += _only_for(numbers_of[column], _among((0, pid) if name == "prlimit64" else (pid,), 0, inside=True))
    for numbers_of, argument, commands in _COMMANDS.values():
        code += _only_for(numbers_of[column], _among(commands, argument, inside=False))
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def install(allowed: Container[str] = (), *, keeps_lengths: bool = False) -> None:
    """Filters this process, which must have set no_new_privs; raises `OSError` if kernel or machine has no filter."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"there is no filter for {machine}")
    code = program(machine, os.getpid(), allowed, keeps_lengths=keeps_lengths)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    number = _SYS_SECCOMP[list(MACHINES).index(machine)]
    try:
        call(number, _SET_MODE_FILTER, _SPEC_ALLOW, head)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        call(number, _SET_MODE_FILTER, 0, head)  # a kernel before 4.17


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _argument(place: int) -> bytes:
    # The lower half: the kernel itself reads no more of a pid, a command or flags.
    return _op(_LOAD, _ARGUMENTS + 8 * place)


def _among(values: Iterable[int], argument: int, *, inside: bool) -> list[bytes]:
    """Allows the call if its argument is one of `values`; without `inside`, if it is none of them."""
    hit, miss = _op(_RETURN, _ALLOW), _refuse(errno.EPERM)
    if not inside:
        hit, miss = miss, hit
    code = [_argument(argument)]
    for value in values:
        code += [_op(_EQUAL, value, 0, 1), hit]
    return [*code, miss]


def _keep_lengths(column: int) -> list[bytes]:
    """Refuses to shorten a file by its path."""
    code = [
        *(_op(_EQUAL, _TRUNCATE[column], 0, 1), _refuse(errno.EPERM)),
        *(_op(_EQUAL, _OPENAT2[column], 0, 1), _refuse(errno.ENOSYS)),  # as if it did not exist: libc uses openat
    ]
    for numbers, flags in _OPENS.values():
        if (number := numbers[column]) is not None:
            code += _only_for(
                number, [_argument(flags), _op(_ANY_BIT, _O_TRUNC, 0, 1), _refuse(errno.EPERM), _op(_RETURN, _ALLOW)]
            )
    return code


def _only_for(number: int, block: Sequence[bytes]) -> list[bytes]:
    """Applies `block`, which always ends in a return, to this call only."""
    return [_op(_EQUAL, number, 0, len(block)), *block]
