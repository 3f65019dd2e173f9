"""registry_quack without a GPU: its hooks, and the reasons why it cannot run a problem."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import registry_quack
from registry.contracts import BOX
from registry.device import Device
from registry.implementation import Implementation
from registry.problem import Value
from registry_quack.rows import reasons

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
OPS = {op.name: op for op in BOX}


def implementations() -> list[Implementation]:
    hooks = ("softmax", "softmax_backward", "rms_norm")
    return [one for hook in hooks for one in getattr(registry_quack, f"{hook}_implementations")()]


def why(device: Device = H200, op: str = "softmax", **dims: Value) -> list[str]:
    return list(reasons(OPS[op].problem_of({"rows": 8, "cols": 4096, "dtype": "bfloat16", **dims}), device))


def test_hooks_bring_an_implementation_of_each_op() -> None:
    assert [(one.op, one.name) for one in implementations()] == [
        ("softmax", "quack.softmax"),
        ("softmax_backward", "quack.softmax_backward"),
        ("rms_norm", "quack.rms_norm"),
    ]


def test_what_it_runs_has_no_reason() -> None:
    assert not why()
    assert not why(op="softmax_backward", cols=128256)
    assert not why(op="rms_norm", dtype="float32", cols=4100)


@pytest.mark.parametrize(
    ("device", "dims", "part"),
    [
        (A100, {}, "need compute capability 9.0, this GPU has 8.0"),
        (H200, {"dtype": "float64"}, "dtype is float64, expected bfloat16, float16, float32"),
        (H200, {"cols": 50257}, "a row of 50257 elements is no multiple of 16 bytes"),
    ],
)
def test_every_reason_is_given(device: Device, dims: dict[str, Value], part: str) -> None:
    assert [part in one for one in why(device, **dims)] == [True]


@pytest.mark.skipif(find_spec("quack") is not None, reason="QuACK is installed")
def test_without_the_library_it_is_named() -> None:
    for one in implementations():
        problem = OPS[one.op].problem_of({"rows": 8, "cols": 4096, "dtype": "bfloat16"})
        assert list(one.unsupported(problem, H200)) == ["quack-kernels is not installed (pip install quack-kernels)"]
