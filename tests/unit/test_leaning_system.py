"""What docs/leaning.md says of Python, the C library and Linux."""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from pathlib import Path

import pytest
import torch

from torch_xla import _XLAC


def test_frames_of_frozen_modules_are_told_by_their_files():
    file = importlib._bootstrap._find_and_load.__code__.co_filename
    assert file.startswith("<frozen "), (
        f"importlib's frames are of the file {file}. csrc/python/init_source.cpp hides frames of "
        "'<frozen '; give it the text of now, or users see the lines of importlib."
    )


def test_openmp_is_pytorchs():
    """The two weak symbols of csrc/cpu/host_parts.cpp, as the loader finds them."""
    extension = ctypes.CDLL(_XLAC.__file__)
    assert hasattr(extension, "omp_set_num_threads") and hasattr(
        extension, "omp_get_max_threads"
    ), (
        "This PyTorch brings no OpenMP. Find how its kernels are kept to one thread, for "
        "csrc/cpu/host_parts.cpp."
    )
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert extension.omp_get_max_threads() == count, (
                "The omp_get_max_threads that the extension sees is not that of PyTorch's OpenMP: "
                "parts of a call would start teams of threads. See csrc/cpu/host_parts.cpp."
            )
    finally:
        torch.set_num_threads(before)


@pytest.mark.process_memory
def test_freed_heap_goes_back(run_python):
    """What `malloc_trim` does for csrc/executor/compile/compile.cpp after large compilations."""
    run_python(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        assert hasattr(libc, "malloc_trim"), (
            "This C library has no malloc_trim. Leave the call in "
            "csrc/executor/compile/compile.cpp out there."
        )
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4096

        blocks = [libc.malloc(4096) for _ in range(20000)]
        for block in blocks:
            ctypes.memset(block, 1, 4096)
        for block in blocks[:-1]:  # the last one keeps the heap from shrinking
            libc.free(block)
        before = resident()
        libc.malloc_trim(0)
        given_back = before - resident()
        assert given_back > 40 << 20, (
            f"malloc_trim gave back {given_back >> 20} MiB of 80. Measure the memory of a process "
            "after large compilations, and find what gives it back with this C library."
        )
        """
    )


def test_linux_tells_of_the_process_and_its_processor():
    def lines(path: str) -> list[str]:
        return Path(path).read_text().splitlines()

    message = " Look at the file, and at its reader, for the words of now."
    first = lines("/proc/cpuinfo")[: lines("/proc/cpuinfo").index("")]
    fields = {line.split("\t")[0].split(":")[0].strip() for line in first}
    assert fields & {"flags", "Features"}, (
        "/proc/cpuinfo names no features of the processor: programs in the persistent cache "
        "(csrc/executor/stored/program_file.cpp) would be taken for those of any." + message
    )
    assert lines("/proc/sys/kernel/random/boot_id")[0].count("-") == 4, (
        "csrc/executor/stored/disk_cache.cpp tells hosts apart by boot_id." + message
    )
    assert any(line.startswith("VmHWM:") for line in lines("/proc/self/status")), (
        "/proc/self/status: see torch_xla/_src/device/memory.py." + message
    )
    limit, maps = Path("/proc/sys/vm/max_map_count"), lines("/proc/self/maps")
    assert 0 < len(maps) < int(limit.read_text()), (
        "csrc/executor/compile/program_cache.cpp counts the lines of /proc/self/maps." + message
    )
    threads = {str(threading.get_native_id()), str(os.getpid())}
    assert threads <= set(os.listdir("/proc/self/task")), (
        "csrc/cpu/sampler.cpp finds threads in /proc/self/task." + message
    )
    here = ctypes.create_string_buffer(b"what is here")
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        assert os.pread(memory.fileno(), 12, ctypes.addressof(here)) == b"what is here", (
            "torch_xla/_src/profile/kernels.py reads code from /proc/self/mem." + message
        )
    assert any(line.startswith("MemAvailable:") for line in lines("/proc/meminfo")), (
        "/proc/meminfo: see torch_xla/_src/device/memory.py." + message
    )
