"""Programmatic dependent launch: a kernel whose blocks start while the kernel ahead of it on its stream still runs.

The launch of such a kernel has the option ``launch_pdl``. Its blocks start as soon as every block of the kernel ahead
has executed ``griddepcontrol.launch_dependents`` or has ended, and ``griddepcontrol.wait`` in it returns when that
kernel has ended and all that it wrote can be read. So between dependent kernels neither the launch nor the first loads
of a weight take time of their own. Each thread of such a kernel waits, and before that reads nothing but prepared
tensors, which the host has waited for when it made them, and writes nothing to global memory. Then the order of a
stream is kept, whatever kernels stand before and behind, and ``launch_dependents`` may stand anywhere. In CUDA C++ the
compiler takes what is read by ``__ldg`` or by a ``__restrict__`` pointer to const for constant while the kernel runs,
and may read it before the wait: a kernel that waits uses neither for what the kernel ahead may write.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, "griddepcontrol".
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from functools import lru_cache

from ..device import Device

OPTION = "launch_pdl"
"""The option of a ``Launch``, as Triton names it."""

_CAPABILITY = (9, 0)
_DRIVER = 12030
"""The first version of CUDA whose graphs keep such launches dependent, as cuDriverGetVersion counts."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WAITS = re.compile(r"griddepcontrol\.wait|cudaGridDependencySynchronize")


def launches_dependents(device: Device) -> bool:
    """True for an NVIDIA GPU from compute capability 9.0 on, with a driver for CUDA 12.3 or later."""
    if device.type != "cuda" or device.capability < _CAPABILITY:
        return False
    return device.target.backend == "cuda" and _driver_version() >= _DRIVER


def pdl_options(dependent: bool) -> Mapping[str, bool]:
    """The options of a launch that is a dependent one, or none: compilers for other GPUs do not know the option."""
    return {OPTION: True} if dependent else {}


def waits(text: str) -> bool:
    """True if a kernel's text, in CUDA C++ or PTX, has the instruction that waits, outside of comments."""
    return _WAITS.search(_COMMENT.sub("", text)) is not None


@lru_cache(maxsize=1)
def _driver_version() -> int:
    """The version of CUDA that the driver is made for; without a driver, where kernels are only compiled, the least."""
    version = ctypes.c_int(0)
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return _DRIVER
    return version.value if status == 0 else _DRIVER
