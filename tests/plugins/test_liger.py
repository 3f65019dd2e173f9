"""registry_liger without a GPU: its hooks and reasons, and its kernels in Triton's interpreter on the CPU.

Triton decides at import whether it interprets, so the numbers are checked in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

import registry_liger
from registry.contract import Op
from registry.contracts import BOX
from registry.device import Device
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_liger import gated, norms, rotary, rows

from ..tiers import THOROUGH

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
INSTALLED = find_spec("liger_kernel") is not None
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
OPS = {op.name: op for op in BOX}
LOSS = "fused_linear_cross_entropy_gradients"
HOOKS = (
    "softmax", "rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward", "silu_and_mul",
    "silu_and_mul_backward", "gelu_and_mul", "gelu_and_mul_backward", "rotary_embedding", "apply_rotary",
    "apply_rotary_backward", LOSS,
)  # fmt: skip
WIDTHS: Mapping[str, Value] = {"rows": 3, "cols": 40, "weight": True, "bias": True, "approximate": "tanh"}
HEADS: Mapping[str, Value] = {
    "tokens": 3, "heads": 3, "kv_heads": 1, "head_dim": 12, "rotary_dim": 8, "style": "neox",
}  # fmt: skip
LINEAR: Mapping[str, Value] = {"rows": 7, "cols": 33, "k": 8, "reduction": "mean", "bias": True}
ROTATIONS = ("rotary_embedding", "apply_rotary", "apply_rotary_backward")
DIMS = {**dict.fromkeys(HOOKS, WIDTHS), **dict.fromkeys(ROTATIONS, HEADS), LOSS: LINEAR}


def implementation(op: str) -> Implementation:
    found: list[Implementation] = getattr(registry_liger, f"{op}_implementations")()
    assert len(found) == 1
    return found[0]


def problem_of(name: str, **dims: Value) -> Problem:
    op = OPS[name]
    known = {*op.static, *op.dynamic, *op.choices}
    given = {dim: value for dim, value in DIMS[name].items() if dim in known}
    return op.problem_of({"dtype": "float16", **given, **dims})


def test_hooks_bring_an_implementation_of_each_op() -> None:
    found = [implementation(op) for op in HOOKS]
    assert [(one.op, one.name) for one in found] == [(op, f"liger.{op}") for op in HOOKS]


@pytest.mark.parametrize(
    ("reasons", "problem", "part"),
    [
        (rows.layout_reasons, problem_of("softmax", dtype="float64"), "dtype is float64, expected bfloat16"),
        (rows.row_reasons, problem_of("rms_norm", cols=1 << 17), "a row of 131072 elements is no block"),
        (norms.affine_reasons, problem_of("layer_norm", bias=False), "it needs a weight and a bias"),
        (gated.tanh_reasons, problem_of("gelu_and_mul", approximate="none"), "by tanh, not 'none'"),
        (rotary.rotary_reasons, problem_of("rotary_embedding", style="gptj"), "it rotates halves of heads (neox)"),
        (rotary.rotary_reasons, problem_of("rotary_embedding", kv_heads=0), "there are no keys"),
        (rotary.rotary_reasons, problem_of("apply_rotary_backward", style="gptj"), "it rotates halves of heads (neox)"),
    ],
)
def test_every_reason_is_given(reasons: rows.LigerReasons, problem: Problem, part: str) -> None:
    assert [part in one for one in reasons(problem, H200)] == [True]


@pytest.mark.skipif(INSTALLED, reason="Liger is installed")
@pytest.mark.parametrize("op", HOOKS)
def test_without_the_library_it_is_named(op: str) -> None:
    missing = "liger-kernel is not installed (pip install liger-kernel)"
    assert list(implementation(op).unsupported(problem_of(op), H200)) == [missing]


@pytest.mark.skipif(not INSTALLED, reason="needs liger-kernel")
@pytest.mark.parametrize("op", HOOKS)
def test_what_it_runs_has_no_reason(op: str) -> None:
    assert not list(implementation(op).unsupported(problem_of(op), H200))


@pytest.mark.skipif(not INSTALLED, reason="needs liger-kernel")
def test_the_fingerprint_has_the_version_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = implementation(LOSS).fingerprint()
    monkeypatch.setattr("registry_liger.linear_loss.installed_version", lambda _: "0.0.1")
    assert implementation(LOSS).fingerprint() != before


def test_the_loss_has_chunks_and_sums_to_tune() -> None:
    loss = implementation(LOSS)
    assert len(loss.space(problem_of(LOSS, bias=False), H200)) == 8
    assert len(loss.space(problem_of(LOSS, bias=True), H200)) == 4
    assert loss.default(problem_of(LOSS, bias=True), H200)["sums"] == "float32"
    assert len(loss.space(problem_of(LOSS, dtype="float32"), H200)) == 4
    assert not loss.capturable


def passed_in_the_interpreter(test: str, ops: Sequence[str]) -> None:
    """Run a numeric test of this file for these ops: all must have passed."""
    if INTERPRETED:
        pytest.skip("this is the interpreter")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    root = Path(__file__).parents[2]
    command += [f"{__file__}::{test}[{op}]" for op in ops]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{len(ops)} passed" in done.stdout, done.stdout[-2000:]


@THOROUGH
@pytest.mark.skipif(not INSTALLED, reason="needs liger-kernel")
def test_kernels_are_right_in_the_interpreter() -> None:
    passed_in_the_interpreter("test_numbers", ("rms_norm", "silu_and_mul_backward", LOSS))


@THOROUGH
@pytest.mark.skipif(not INSTALLED, reason="needs liger-kernel")
def test_kernels_are_right_on_every_example_in_the_interpreter() -> None:
    passed_in_the_interpreter("test_numbers_of_every_example", HOOKS)


@pytest.fixture(scope="module")
def _able() -> None:
    from .interpreted_liger import make_able

    make_able()


# the interpreter cuts float32 off to bfloat16, where the hardware rounds: halves are float16 here
IN_FLOAT16_AND_FLOAT32 = ("float16", "float32")


@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("_able")
@pytest.mark.parametrize("op", HOOKS)
def test_numbers(op: str) -> None:
    dtype = IN_FLOAT16_AND_FLOAT32[HOOKS.index(op) % 2]
    check_implementation(implementation(op), OPS[op], problems=[problem_of(op, dtype=dtype)], device="cpu")


@THOROUGH
@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("_able")
@pytest.mark.parametrize("op", HOOKS)
def test_numbers_of_every_example(op: str) -> None:
    configs = "all" if op == LOSS else "default"
    check_implementation(implementation(op), OPS[op], problems=examples(OPS[op]), device="cpu", configs=configs)


def examples(op: Op) -> list[Problem]:
    """The small examples of an op in these dtypes; of the rotations, which are slow, every third."""
    found = [op.problem_of(dims) for dims in op.examples if dims["dtype"] in IN_FLOAT16_AND_FLOAT32]
    small = [each for each in found if each.dims.get("rows", 1) * each.dims.get("cols", 1) <= 6000]
    return small[::3] if op.name in ROTATIONS else small
