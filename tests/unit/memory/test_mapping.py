"""Mappings: one memory twice end to end, read-only where it must be, gone with the last view, absent in a fork."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from prepserver.memory.errors import SegmentError
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment

NBYTES = 3 * 4096


def mapped(**changed: bool | int) -> MemoryMap:
    fd = create_segment("test", NBYTES)
    try:
        return MemoryMap(fd, 0, NBYTES, **({"writable": True} | changed))  # type: ignore[arg-type]
    finally:
        os.close(fd)


def bytes_of(mapping: MemoryMap) -> npt.NDArray[np.uint8]:
    return np.ctypeslib.as_array(mapping.buffer)


def is_mapped(address: int) -> bool:
    """Whether some mapping of this process holds `address`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split(" ", 1)[0].split("-"))
        if low <= address < high:
            return "memfd:test" in line
    return False


def test_two_copies_are_one_memory_end_to_end() -> None:
    view = bytes_of(mapped(copies=2))
    assert len(view) == 2 * NBYTES
    view[5] = 7
    view[2 * NBYTES - 1] = 9
    assert view[NBYTES + 5] == 7
    assert view[NBYTES - 1] == 9
    run = view[NBYTES - 2 : NBYTES + 6]  # over the seam
    assert run.tolist() == [0, 9, 0, 0, 0, 0, 0, 7]


def test_a_part_of_a_segment_is_mapped_from_its_offset() -> None:
    fd = create_segment("test", NBYTES)
    whole = bytes_of(MemoryMap(fd, 0, NBYTES, writable=True))
    part = bytes_of(MemoryMap(fd, 4096, 4096, writable=False))
    os.close(fd)
    whole[4096 + 3] = 4
    assert part[3] == 4
    assert part.sum() == 4


def test_a_mapping_outlives_its_descriptor_until_its_last_view() -> None:
    mapping = mapped()
    address = mapping.address
    view = bytes_of(mapping)[10:20]
    tensor = torch.frombuffer(mapping.buffer, dtype=torch.uint8)[4096:]
    del mapping
    gc.collect()
    view[0] = 1
    assert is_mapped(address)
    del view
    gc.collect()
    assert is_mapped(address)
    assert int(tensor.sum()) == 0
    del tensor
    gc.collect()
    assert not is_mapped(address)


def test_populating_makes_pages_present_and_leaves_their_bytes() -> None:
    mapping = mapped()
    bytes_of(mapping)[100] = 5
    mapping.populate()
    assert bytes_of(mapping)[100] == 5
    assert bytes_of(mapping).sum() == 5


@pytest.mark.parametrize(("nbytes", "offset"), [(0, 0), (4096, 100)])
def test_what_the_kernel_refuses_is_an_error_with_its_reason(nbytes: int, offset: int) -> None:
    fd = create_segment("test", NBYTES)
    try:
        with pytest.raises(SegmentError, match="Invalid argument"):
            MemoryMap(fd, offset, nbytes, writable=True)
    finally:
        os.close(fd)


def test_a_refused_mapping_leaves_no_address_space_behind() -> None:
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(50):
        with pytest.raises(SegmentError):
            MemoryMap(-1, 0, 1 << 20, writable=True)
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 25


_WRITE = """
import os, sys
import numpy as np
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment

fd = create_segment("test", 4096)
view = np.frombuffer(MemoryMap(fd, 0, 4096, writable=sys.argv[1] == "writable").buffer, np.uint8)
view.setflags(write=True)
view[0] = 1
print("written")
"""


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )


def test_a_write_to_a_read_only_mapping_kills_the_writer() -> None:
    assert run(_WRITE, "read-only").returncode == -signal.SIGSEGV
    assert run(_WRITE, "writable").stdout == "written\n"


_FORK = """
import gc, os
import numpy as np
from prepserver.memory.mapping import MemoryMap
from prepserver.memory.segment import create_segment

fd = create_segment("test", 4096)
mapping = MemoryMap(fd, 0, 4096, writable=True)
view = np.frombuffer(mapping.buffer, np.uint8)
child = os.fork()
if child == 0:
    here = "memfd:test" in open("/proc/self/maps").read()
    del view, mapping  # must not unmap what the child may have mapped there since
    gc.collect()
    os._exit(1 if here else 0)
_, status = os.waitpid(child, 0)
view[0] = 1
print(os.waitstatus_to_exitcode(status), "memfd:test" in open("/proc/self/maps").read())
"""


def test_a_forked_child_has_no_mapping_and_its_parent_keeps_it() -> None:
    assert run(_FORK).stdout == "0 True\n"


def test_it_is_known_which_memory_is_not_there_yet() -> None:
    fd = create_segment("test", NBYTES)
    mapping, other = (MemoryMap(fd, 0, NBYTES, writable=True) for _ in range(2))
    os.close(fd)
    assert mapping.absent_from(0) == 0
    bytes_of(other)[0] = 1  # whoever touches it
    assert mapping.absent_from(0) == 4096
    bytes_of(other)[2 * 4096] = 1
    assert mapping.absent_from(0) == 4096
    assert mapping.absent_from(2 * 4096) == NBYTES
    other.populate()
    assert mapping.absent_from(4096) == NBYTES
