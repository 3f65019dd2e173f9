"""registry_quack without a GPU: its hooks, and the reasons why it cannot run a problem."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from importlib.util import find_spec

import pytest

import registry
import registry_quack
from registry.contracts import BOX
from registry.device import Device
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_quack import losses, norms
from registry_quack.rows import reasons

from ..tiers import one_of_each
from . import quack_stand_in

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
OPS = {op.name: op for op in BOX}
HOOKS = (
    "softmax", "softmax_backward", "rms_norm", "rms_norm_backward", "fused_add_rms_norm", "layer_norm",
    "layer_norm_backward", "cross_entropy", "cross_entropy_backward",
)  # fmt: skip
MORE = {"weight": True, "bias": True, "reduction": "mean"}


def implementations() -> list[Implementation]:
    return [one for hook in HOOKS for one in getattr(registry_quack, f"{hook}_implementations")()]


def problem_of(op: str, **dims: Value) -> Problem:
    """Rows of 4096 columns, with the dimensions that an op has beside them."""
    more = {name: value for name, value in MORE.items() if name in (*OPS[op].choices, *OPS[op].static)}
    return OPS[op].problem_of({"rows": 8, "cols": 4096, "dtype": "bfloat16", **more, **dims})


def why(device: Device = H200, op: str = "softmax", **dims: Value) -> list[str]:
    return list(reasons(problem_of(op, **dims), device))


def test_hooks_bring_an_implementation_of_each_op() -> None:
    assert [(one.op, one.name) for one in implementations()] == [(hook, f"quack.{hook}") for hook in HOOKS]


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
        problem = problem_of(one.op)
        assert list(one.unsupported(problem, H200)) == ["quack-kernels is not installed (pip install quack-kernels)"]


def test_reasons_of_norms_name_what_is_missing() -> None:
    bare = problem_of("layer_norm", weight=False)
    assert list(norms.layer_norm_reasons(bare, H200)) == ["it needs a weight"]
    assert list(norms.layer_norm_backward_reasons(problem_of("layer_norm_backward", weight=False), H200)) == [
        "it needs a weight"
    ]
    long = problem_of("rms_norm_backward", cols=1 << 18, dtype="float32")
    assert [one[:30] for one in norms.gradient_reasons(long, H200)] == ["a float32 row of 262144 elemen"]


LOSSES: list[Mapping[str, Value]] = [
    {"rows": rows, "cols": cols, "reduction": reduction, "weight": weight, "dtype": dtype}
    for rows, cols, reduction, weight, dtype in (
        (7, 40, "mean", False, "bfloat16"),
        (5, 33, "none", True, "float32"),
        (4, 24, "sum", True, "float16"),
    )
]
NORMS: list[Mapping[str, Value]] = [
    {"rows": 5, "cols": 40, "dtype": "bfloat16", "weight": True, "bias": True},
    {"rows": 3, "cols": 33, "dtype": "float32", "weight": True, "bias": False},
]
FUNCTIONS = {
    "rms_norm_backward": norms.rms_norm_backward,
    "fused_add_rms_norm": norms.fused_add_rms_norm,
    "layer_norm": norms.layer_norm,
    "layer_norm_backward": norms.layer_norm_backward,
    "cross_entropy": losses.cross_entropy,
    "cross_entropy_backward": losses.cross_entropy_backward,
}


CASES = [(op, dims) for op in FUNCTIONS for dims in (LOSSES if op.startswith("cross") else NORMS)]


@pytest.mark.parametrize(("op", "dims"), one_of_each(CASES, lambda op, dims: op))
@pytest.mark.usefixtures("one_thread")
@pytest.mark.few(3)
def test_what_is_made_of_its_functions_is_the_op(
    op: str, dims: Mapping[str, Value], monkeypatch: pytest.MonkeyPatch
) -> None:
    # ignored rows, targets outside of the vocabulary, label smoothing, offsets and gradients that are not needed
    for module in (losses, norms):
        monkeypatch.setattr(module, "_functions", lambda: quack_stand_in)
    own = registry.implementation_of(
        op, f"quack.{op}", FUNCTIONS[op], any_size=True, into=op == "fused_add_rms_norm", device_types=("cpu",),
        unsupported=lambda problem, _: [] if problem.traits["contiguous"] else ["not contiguous"],
    )  # fmt: skip
    names = {*OPS[op].static, *OPS[op].dynamic, *OPS[op].choices}
    problem = {name: value for name, value in dims.items() if name in names}
    assert len(check_implementation(own, OPS[op], problems=[problem], device="cpu").checked) > 1


@pytest.mark.skipif(find_spec("quack") is None, reason="QuACK is not installed")
@pytest.mark.parametrize(
    ("module", "function"),
    [
        *(("rmsnorm", name) for name in ("rmsnorm_fwd", "rmsnorm_bwd", "layernorm_fwd", "layernorm_bwd")),
        *(("cross_entropy", name) for name in ("cross_entropy_fwd", "cross_entropy_bwd")),
    ],
)
def test_the_stand_in_has_the_library_s_signatures(module: str, function: str) -> None:
    own, theirs = getattr(quack_stand_in, function), getattr(importlib.import_module(f"quack.{module}"), function)
    assert [*inspect.signature(own).parameters] == [*inspect.signature(theirs).parameters]
