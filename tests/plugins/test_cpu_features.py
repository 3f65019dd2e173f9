"""What a CPU has and may use, and the reasons that are given where it has or may not."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from registry.contracts import BOX
from registry.device import Device
from registry.errors import UnsupportedError
from registry.implementation import Implementation
from registry_cpp import cpu_features
from registry_cpp.int8_products import AmxInt8Product, DotInt8Product, Int8Weight
from registry_cpp.weight_products import AmxWeightProduct, DotWeightProduct, PairedWeight

OPS = {op.name: op for op in BOX}
INT8, PAIRED = Int8Weight("scaled_mm", 8), PairedWeight("linear", 16)
FORMS: list[Implementation] = [
    AmxInt8Product(INT8),
    DotInt8Product(INT8),
    AmxWeightProduct(PAIRED),
    DotWeightProduct(PAIRED),
]
TINY_STACK = """
import ctypes
from registry.device import Device
from registry_cpp.cpu_features import require_amx

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

room = ctypes.create_string_buffer(6000)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, 6000)), None) == 0
require_amx()
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine of another architecture."""
    known = cpu_features.cpu_features, cpu_features.amx_refusal
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "processor", lambda: "")
    for one in known:
        one.cache_clear()
    yield
    for one in known:
        one.cache_clear()


def reasons(implementation: Implementation) -> str:
    dims = {"m": 1, "n": 32, "k": 64, "bias": False, "dtype": "bfloat16"}
    if implementation.op == "scaled_mm":
        dims |= {"scales": "row", "out_dtype": "bfloat16", "dtype": "int8"}
    problem = OPS[implementation.op].problem_of(dims)
    return "; ".join(implementation.unsupported(problem, Device.of("cpu")))


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("implementation", "absent"),
    list(zip(FORMS, ("amx_int8", "avx", "amx_bf16", "avx512_bf16"), strict=True)),
    ids=lambda one: getattr(one, "name", one),
)
def test_another_architecture_is_refused_by_the_instructions_it_lacks(
    implementation: Implementation, absent: str
) -> None:
    assert f"this CPU (aarch64) has no {absent}" in reasons(implementation)


@pytest.mark.usefixtures("elsewhere")
def test_tiles_are_not_bound_where_they_may_not_be_used() -> None:
    with pytest.raises(UnsupportedError, match="amx_tile"):
        cpu_features.require_amx()


def test_the_refusal_of_the_kernel_is_told() -> None:
    if cpu_features.missing("amx_tile"):
        pytest.skip("this CPU has no AMX")
    assert cpu_features.amx_refusal() == ""
    done = subprocess.run([sys.executable, "-c", TINY_STACK], capture_output=True, text=True, timeout=120, check=False)
    assert "the kernel does not permit AMX tiles (arch_prctl: No space left on device)" in done.stderr
