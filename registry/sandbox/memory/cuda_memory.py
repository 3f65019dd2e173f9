"""Shared memory of a GPU, by the driver's virtual memory management.

An allocation becomes an open file (``cuMemExportToShareableHandle``), which travels as any other. The older
``cudaIpcMemHandle`` does not reach into a sandbox: the driver passes it through a socket of the network namespace, by
process numbers that both sides have to know.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from ...errors import SandboxError
from .shared_memory import SharedMemory

_PINNED, _ON_DEVICE, _FILE, _READ_WRITE = 1, 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("direct_rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Exposed:
    """Memory at an address as torch takes it: by the array interface of CUDA."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 2,
        }  # fmt: skip


class CudaMemory(SharedMemory):
    """An allocation, mapped into this process's addresses of the GPU."""

    def __init__(self, handle: ctypes.c_ulonglong, size: int, nbytes: int, index: int, descriptor: int) -> None:
        """``size``: of the allocation, at least ``nbytes``."""
        self._size = size
        self.descriptor = descriptor
        self._address = ctypes.c_ulonglong()
        zero = ctypes.c_ulonglong(0)
        _call("cuMemAddressReserve", ctypes.byref(self._address), ctypes.c_size_t(size), ctypes.c_size_t(0), zero, zero)
        _call("cuMemMap", self._address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, zero)
        access = _Access(_Location(_ON_DEVICE, index), _READ_WRITE)
        _call("cuMemSetAccess", self._address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        # the mapping holds the allocation
        _call("cuMemRelease", handle)
        exposed = _Exposed(int(self._address.value), nbytes)
        self.bytes = torch.as_tensor(exposed, device=torch.device("cuda", index))

    @classmethod
    def made(cls, nbytes: int, index: int) -> CudaMemory:
        """New memory on a GPU of this process's numbering, in whole pages."""
        torch.zeros(1, device=torch.device("cuda", index))  # this thread needs a context
        wanted = _Properties(_PINNED, _FILE, _Location(_ON_DEVICE, index))
        page = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(wanted), ctypes.c_int(0))
        size = -(-nbytes // page.value) * page.value
        handle = ctypes.c_ulonglong()
        _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_ulonglong(0))
        file = ctypes.c_int(-1)
        _call("cuMemExportToShareableHandle", ctypes.byref(file), handle, ctypes.c_int(_FILE), ctypes.c_ulonglong(0))
        return cls(handle, size, nbytes, index, file.value)

    @classmethod
    def opened(cls, descriptor: int, nbytes: int, index: int) -> CudaMemory:
        """The memory of a descriptor; its size is rounded up to pages as ``made`` does."""
        torch.zeros(1, device=torch.device("cuda", index))
        wanted = _Properties(_PINNED, _FILE, _Location(_ON_DEVICE, index))
        page = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(page), ctypes.byref(wanted), ctypes.c_int(0))
        handle = ctypes.c_ulonglong()
        _call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), ctypes.c_int(_FILE)
        )  # fmt: skip
        return cls(handle, -(-nbytes // page.value) * page.value, nbytes, index, descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            del self.bytes
            _call("cuMemUnmap", self._address, ctypes.c_size_t(self._size))
            _call("cuMemAddressFree", self._address, ctypes.c_size_t(self._size))


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises SandboxError with what it answered."""
    library = ctypes.CDLL("libcuda.so.1")
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        told = text.value.decode() if text.value else f"error {code}"
        raise SandboxError(
            f"--sandbox: the GPU's memory cannot be shared: {name} answered {told}",
            hint="it needs a driver that shares memory by file descriptors, as those for Linux do",
        )
