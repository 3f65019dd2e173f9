"""A packed product in Humming's terms: bits, groups, zero points, and the reasons why it cannot run one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from registry import Device, Problem
from registry.device import installed_version

LIBRARY = "humming-kernels"
INSTALL_HINT = "pip install 'kernel-registry[humming]'"

COLUMNS = 128
"""What n must be a multiple of: the narrowest tile of four warps side by side."""
DEPTH = 64
"""What k must be a multiple of: the shallowest tile."""

_DTYPES = ("bfloat16", "float16")
_GROUP_SIZES = (16, 32, 64, 128, 256)
_BITS = {"gemm_int4": 4, "gemm_int8": 8, "gemm_int2": 2, "gemm_int1": 1}


class HummingForm(NamedTuple):
    """A product but for its rows. ``group`` 0 is one scale a column, ``repeats`` how often a scale is written.

    zero_points  whether the kernel subtracts numbers in half precision, and not 2 ** (bits - 1)
    """

    bits: int
    n: int
    k: int
    dtype: str
    group: int
    repeats: int
    zero_points: bool

    @classmethod
    def of(cls, problem: Problem) -> HummingForm:
        bits, group, repeats = _BITS[problem.op], int(problem.group_size), 1
        if group == problem.k:
            group, repeats = _whole_columns(problem)
        # one bit without zero points has levels of plus and minus half a scale, which the kernels' middle, 1, has not
        zero_points = has_zeros(problem) or bits == 1
        return cls(bits, int(problem.n), int(problem.k), str(problem.dtype), group, repeats, zero_points)

    @property
    def is_signed(self) -> bool:
        """Whether the kernel reads a sign and a magnitude: 8 bits are more than bfloat16 counts to, 128 apart."""
        return self.bits == 8 and self.dtype == "bfloat16" and not self.zero_points

    @property
    def layer(self) -> Mapping[str, Any]:
        """The library's LayerConfig as keywords, but for the architecture."""
        return {
            "shape_n": self.n, "shape_k": self.k,
            "a_dtype": self.dtype, "b_dtype": f"uint{self.bits}", "c_dtype": self.dtype, "bs_dtype": self.dtype,
            "weight_scale_group_size": self.group,
            "has_zero_point": self.zero_points, "is_fp_zero_point": self.zero_points,
        }  # fmt: skip


@lru_cache(maxsize=1)
def library_version() -> str:
    """The library's installed version; "" where it is not installed. Every new size of an op asks."""
    return installed_version(LIBRARY) if find_spec("humming") is not None else ""


def has_zeros(problem: Problem) -> bool:
    """Whether the weight has zero points of its own."""
    return not problem.symmetric if problem.op == "gemm_int4" else problem.zeros != "none"


def _whole_columns(problem: Problem) -> tuple[int, int]:
    """One scale a column, or in float16 groups with equal scales: there sums that are scaled last reach infinity."""
    if problem.dtype != "float16":
        return 0, 1
    group = 128 if problem.k % 128 == 0 else DEPTH
    return group, int(problem.k) // group


def reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why Humming cannot run a problem on a device."""
    yield from _missing(device)
    if problem.dtype not in _DTYPES:
        yield f"dtype is {problem.dtype}, expected {' or '.join(_DTYPES)}"
    if not problem.traits["contiguous"]:
        yield "tensors are not contiguous"
    if not problem.traits["aligned"]:
        yield "it reads 16 bytes at a time, and a tensor is not aligned to 16 bytes"
    if problem.n % COLUMNS:
        yield f"n={problem.n} is no multiple of {COLUMNS}"
    if problem.k % DEPTH:
        yield f"k={problem.k} is no multiple of {DEPTH}"
    yield from _weight_reasons(problem)


def _weight_reasons(problem: Problem) -> Iterator[str]:
    if problem.group_size == problem.k:
        if problem.dtype == "float16" and has_zeros(problem):
            yield "with one scale and zero point a column its float16 results err by more than the op allows"
    elif problem.group_size not in _GROUP_SIZES:
        yield f"group_size is {problem.group_size}, expected k or one of {', '.join(map(str, _GROUP_SIZES))}"
    elif problem.k % problem.group_size:
        yield f"the last group is shorter: k={problem.k} is no multiple of group_size={problem.group_size}"
    if problem.op == "gemm_int4":
        return
    if problem.zeros == "float":
        yield "zero points are rounded to half precision, and these are any numbers in float32"
    if problem.act_order:
        yield "it knows no act-order"
    if problem.bias:
        yield "it reads a bias in an order of its own, and a bias is no weight that could be brought into it once"


def _missing(device: Device) -> Iterator[str]:
    if not library_version():
        yield f"{LIBRARY} is not installed ({INSTALL_HINT})"
    if device.warp_size != 32 or not device.architecture.startswith("sm_"):
        yield f"it is written for NVIDIA's GPUs, this is {device.architecture}"
    elif device.capability < (8, 0):
        yield f"it needs compute capability 8.0, this is {device.architecture}"
