"""Tolerances, proved both ways: some kind of inputs refuses each mutant, every kind accepts right computations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from registry import numerics
from registry.contract import Op
from registry.contracts import BOX, GELU, GEMM_INT4, RMS_NORM, SOFTMAX, SQUARE, VECTOR_ADD
from registry.packed import dequantized, unpack
from registry.problem import Problem, Value

Tensor = torch.Tensor
Computation = Callable[..., Tensor]
BY_NAME = {op.name: op for op in BOX}
DTYPES = ("float32", "float16", "bfloat16")

SIZES: Mapping[str, list[dict[str, Value]]] = {
    "vector_add": [{"n": 1000}, {"n": 65_537}],
    "square": [{"n": 1000}, {"n": 65_537}],
    "gelu": [{"n": 1001, "approximate": how} for how in ("none", "tanh")],
    "softmax": [{"rows": 1, "cols": 128_256}, {"rows": 7, "cols": 1000}],
    "rms_norm": [{"rows": 4, "cols": 4096}, {"rows": 7, "cols": 1000}],
    "gemm_int4": [
        {"m": m, "n": 64, "k": k, "group_size": size, "bits": 4, "symmetric": symmetric}
        for m, k, size, symmetric in (
            (4, 4096, 128, False),
            (4, 4096, 128, True),
            (1, 4096, 4096, False),
            (33, 512, 32, False),
        )
    ],
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Many small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@lru_cache(maxsize=256)
def case(name: str, key: str, kind: str) -> tuple[Problem, tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    op, problem = BY_NAME[name], problems()[key]
    values = op.bind(op.inputs(problem, kind, torch.Generator().manual_seed(7)), {})
    reference = numerics.reference64(op, values)
    return problem, values, reference, numerics.own_error(op, problem, values, reference)


@lru_cache(maxsize=1)
def problems() -> dict[str, Problem]:
    found = {}
    for op in BOX:
        for dtype in DTYPES[1:] if op is GEMM_INT4 else DTYPES:
            for dims in SIZES[op.name]:
                problem = op.problem_of({**dims, "dtype": dtype})
                found[problem.key] = problem
    return found


def verdicts(op: Op, problem: Problem, compute: Computation) -> Iterator[tuple[str, numerics.Comparison]]:
    for kind in op.kinds:
        _, values, reference, own = case(op.name, problem.key, kind)
        yield kind, numerics.compare(op, problem, compute(*values), reference, own)


# --- what is wrong whatever the op: computed from its right output ---


def left_out(y: Tensor, count: int) -> Tensor:
    y[..., -count:] = 0
    return y


def with_nan(y: Tensor) -> Tensor:
    y.view(-1)[y.numel() // 2] = math.nan
    return y


OUTPUT_MUTANTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "all zeros": torch.zeros_like,
    "all equal to the mean": lambda y: torch.full_like(y, y.double().nanmean().item()),
    "last column not written": lambda y: left_out(y, 1),
    "last partial block of 128 not written": lambda y: left_out(y, (y.shape[-1] - 1) % 128 + 1),
    "wrong row": lambda y: y.roll(1, 0 if y.shape[0] > 1 else -1),
    "one nan": with_nan,
}


@pytest.mark.parametrize("mutant", OUTPUT_MUTANTS)
@pytest.mark.parametrize("key", [pytest.param(key, id=str(problem)) for key, problem in problems().items()])
def test_an_output_mutant_is_refused_by_some_kind(key: str, mutant: str) -> None:
    problem = problems()[key]
    op = BY_NAME[problem.op]
    damage = OUTPUT_MUTANTS[mutant]
    assert any(
        not verdict.ok for _, verdict in verdicts(op, problem, lambda *values: damage(reference(op)(*values).clone()))
    )


def reference(op: Op) -> Computation:
    """The op's reference, known to return one tensor."""

    def compute(*values: Any) -> Tensor:
        y = op.reference(*values)
        assert isinstance(y, Tensor)
        return y

    return compute


gelu, rms_norm = reference(GELU), reference(RMS_NORM)

# --- lower precision than promised ---


def tf32(x: Tensor) -> Tensor:
    """float32 with 10 bits of mantissa, as tensor cores read it."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def lanes_sum(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Sum over the last dimension as 32 lanes do, serially and then in a tree, rounding to ``dtype`` at each step."""
    padded = torch.nn.functional.pad(terms.float(), (0, -terms.shape[-1] % 32)).unflatten(-1, (-1, 32))
    total = torch.zeros_like(padded[..., 0, :])
    for step in range(padded.shape[-2]):
        total = (total + padded[..., step, :]).to(dtype).float()
    while total.shape[-1] > 1:
        total = (total[..., ::2] + total[..., 1::2]).to(dtype).float()
    return total


def softmax_with(total: Callable[[Tensor], Tensor]) -> Computation:
    def compute(x: Tensor, dim: int) -> Tensor:
        terms = (x.float() - x.float().amax(-1, keepdim=True)).exp()
        return (terms / total(terms)).to(x.dtype)

    return compute


def softmax_unshifted(x: Tensor, dim: int) -> Tensor:
    terms = x.float().exp()
    return (terms / terms.sum(-1, keepdim=True)).to(x.dtype)


def softmax_online(x: Tensor, guarded: bool = True) -> Tensor:
    """One pass over blocks of 512, maximum and sum rescaled as they go (Milakov and Gimelshein, 2018)."""
    wide = x.float()
    most = torch.full_like(wide[..., :1], -math.inf)
    total = torch.zeros_like(most)
    for block in wide.split(512, -1):
        new = torch.maximum(most, block.amax(-1, keepdim=True))
        base = torch.where(new == -math.inf, 0.0, new) if guarded else new
        total = total * (most - base).exp() + (block - base).exp().sum(-1, keepdim=True)
        most = new
    return ((wide - most).exp() / total).to(x.dtype)


def rms_with(mean: Callable[[Tensor], Tensor]) -> Computation:
    def compute(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(mean(wide * wide) + eps) * weight.float()).to(x.dtype)

    return compute


def mean_of(terms: Tensor) -> Tensor:
    return terms.mean(-1, keepdim=True)


def gemm_stepwise(dtype: torch.dtype) -> Computation:
    """Sixteen products at a time, as a tensor core's k; the accumulator rounded to ``dtype`` in between."""

    def compute(a: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor | None, *rest: Any) -> Tensor:
        wide, weight = a.float(), dequantized(qweight, scales, zeros, rest[1], torch.float32)
        total = torch.zeros(a.shape[0], qweight.shape[1])
        for left, right in zip(wide.split(16, 1), weight.split(16, 0), strict=True):
            total = (total + left @ right).to(dtype).float()
        return total.to(a.dtype)

    return compute


def gemm_changed(change: Callable[[dict[str, Any]], None]) -> Computation:
    """The reference on arguments that ``change`` has tampered with."""

    def compute(*values: Any) -> Tensor:
        named = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in zip(GEMM_INT4.parsed.names, values, strict=True)
        }
        change(named)
        return reference(GEMM_INT4)(*named.values())

    return compute


def forget_k(count: int) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named["a"][..., -count:] = 0

    return change


def next_group(name: str) -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name] = named[name].roll(1, 0)

    return change


def next_column(named: dict[str, Any]) -> None:
    named["scales"] = named["scales"].roll(1, 1)


def zero_off_by_one(named: dict[str, Any]) -> None:
    zeros = named["zeros"]
    named["zeros"] = torch.full_like(named["scales"], 9) if zeros is None else zeros + 1


def swapped_nibbles(named: dict[str, Any]) -> None:
    words = named["qweight"]
    named["qweight"] = ((words & 0x0F0F0F0F) << 4) | ((words >> 4) & 0x0F0F0F0F)


HALF, BRAIN = torch.float16, torch.bfloat16

Applies = Callable[[Problem], bool]


def everywhere(problem: Problem) -> bool:
    return True


def only_float32(problem: Problem) -> bool:
    return bool(problem.dtype == "float32")


def not_bfloat16(problem: Problem) -> bool:
    # fp16 has three bits more than bfloat16: over a few thousand terms in 32 lanes its sum is as good as fp32's
    return bool(problem.dtype != "bfloat16")


def several_groups(problem: Problem) -> bool:
    return bool(problem.group_size < problem.k)


MUTANTS: list[tuple[Op, str, Computation, Applies]] = [
    (VECTOR_ADD, "x + x", lambda x, y: x + x, everywhere),
    (VECTOR_ADD, "x - y", lambda x, y: x - y, everywhere),
    (VECTOR_ADD, "in bfloat16", lambda x, y: (x.to(BRAIN) + y.to(BRAIN)).to(x.dtype), not_bfloat16),
    # in bfloat16 fp16 arithmetic is exact enough; it overflows
    (VECTOR_ADD, "in float16", lambda x, y: (x.to(HALF) + y.to(HALF)).to(x.dtype), lambda p: p.dtype != "float16"),
    (VECTOR_ADD, "tf32", lambda x, y: tf32(x) + tf32(y), only_float32),
    (SQUARE, "abs", torch.abs, everywhere),
    (SQUARE, "in bfloat16", lambda x: x.to(BRAIN).square().to(x.dtype), not_bfloat16),
    (SQUARE, "in float16", lambda x: x.to(HALF).square().to(x.dtype), lambda p: p.dtype != "float16"),
    (SQUARE, "tf32", lambda x: tf32(x) * tf32(x), only_float32),
    (GELU, "relu", lambda x, how: torch.relu(x), everywhere),
    (
        GELU,
        "the other approximation",
        lambda x, how: torch.nn.functional.gelu(x, approximate="none" if how == "tanh" else "tanh"),
        everywhere,
    ),
    (GELU, "x * sigmoid(1.702 x)", lambda x, how: (x.float() * (1.702 * x.float()).sigmoid()).to(x.dtype), everywhere),
    (GELU, "in bfloat16", lambda x, how: gelu(x.to(BRAIN), how).to(x.dtype), not_bfloat16),
    (GELU, "tf32", lambda x, how: gelu(tf32(x), how), only_float32),
    (SOFTMAX, "last column not summed", softmax_with(lambda e: e[..., :-1].sum(-1, keepdim=True)), everywhere),
    (
        SOFTMAX,
        "last partial block of 128 not summed",
        softmax_with(lambda e: e[..., : (e.shape[-1] - 1) // 128 * 128].sum(-1, keepdim=True)),
        everywhere,
    ),
    (SOFTMAX, "maximum not subtracted", softmax_unshifted, everywhere),
    (SOFTMAX, "online, -inf - -inf", lambda x, dim: softmax_online(x, guarded=False), everywhere),
    (SOFTMAX, "bfloat16 sum", softmax_with(lambda e: lanes_sum(e, BRAIN)), everywhere),
    # 128256 terms overflow it in any dtype
    (SOFTMAX, "float16 sum", softmax_with(lambda e: lanes_sum(e, HALF)), lambda p: not_bfloat16(p) or p.cols > 65_536),
    (SOFTMAX, "tf32", lambda x, dim: torch.softmax(tf32(x), dim), only_float32),
    (SOFTMAX, "computed in its dtype", lambda x, dim: x.sub(x.amax(-1, True)).exp().div(2).mul(2) / 1.01, everywhere),
    (
        RMS_NORM,
        "last column not summed",
        rms_with(lambda t: t[..., :-1].sum(-1, keepdim=True) / t.shape[-1]),
        everywhere,
    ),
    (RMS_NORM, "eps ignored", lambda x, w, eps: rms_norm(x, w, 0.0), everywhere),
    (RMS_NORM, "default eps", lambda x, w, eps: rms_norm(x, w, 1e-6), everywhere),
    (RMS_NORM, "weight ignored", lambda x, w, eps: rms_norm(x, torch.ones_like(w), eps), everywhere),
    (RMS_NORM, "weight of the next column", lambda x, w, eps: rms_norm(x, w.roll(1), eps), everywhere),
    (RMS_NORM, "bfloat16 sum", rms_with(lambda t: lanes_sum(t, BRAIN) / t.shape[-1]), everywhere),
    # 300 * 300 overflows it in any dtype
    (RMS_NORM, "float16 sum", rms_with(lambda t: lanes_sum(t, HALF) / t.shape[-1]), everywhere),
    (RMS_NORM, "tf32", lambda x, w, eps: rms_norm(tf32(x), w, eps), only_float32),
    (GEMM_INT4, "last element of K left out", gemm_changed(forget_k(1)), everywhere),
    (GEMM_INT4, "last 128 of K left out", gemm_changed(forget_k(128)), everywhere),
    (GEMM_INT4, "scales of the next group", gemm_changed(next_group("scales")), several_groups),
    (
        GEMM_INT4,
        "zeros of the next group",
        gemm_changed(next_group("zeros")),
        lambda p: several_groups(p) and not p.symmetric,
    ),
    (GEMM_INT4, "scales of the next column", gemm_changed(next_column), everywhere),
    (GEMM_INT4, "zero points off by one", gemm_changed(zero_off_by_one), everywhere),
    (GEMM_INT4, "nibbles swapped", gemm_changed(swapped_nibbles), everywhere),
    # 512 terms are 32 steps: the error stays near what rounded weights make
    (GEMM_INT4, "bfloat16 accumulator", gemm_stepwise(BRAIN), lambda p: p.k > 1000 or p.dtype == "float16"),
    (GEMM_INT4, "float16 accumulator", gemm_stepwise(HALF), lambda p: p.k > 1000 and p.dtype == "float16"),
]


def cases(of: list[tuple[Op, str, Computation, Applies]]) -> list[Any]:
    return [
        pytest.param(op, problem, compute, id=f"{problem}-{name}")
        for op, name, compute, applies in of
        for problem in problems().values()
        if problem.op == op.name and applies(problem)
    ]


@pytest.mark.parametrize(("op", "problem", "compute"), cases(MUTANTS))
def test_a_mutant_is_refused_by_some_kind(op: Op, problem: Problem, compute: Computation) -> None:
    assert any(not verdict.ok for _, verdict in verdicts(op, problem, compute))


# --- right computations, in other orders than the reference's ---


def serial_sum(terms: Tensor) -> Tensor:
    """One addition after the other in fp32, as a plain loop does."""
    return torch.from_numpy(np.cumsum(terms.numpy(), axis=-1, dtype=np.float32))[..., -1:]


def softmax_exp2(x: Tensor, dim: int) -> Tensor:
    """With the exponent in base 2 and one reciprocal a row, as GPU kernels do."""
    wide = x.float() * 1.4426950408889634
    terms = torch.exp2(wide - wide.amax(-1, keepdim=True))
    return (terms * terms.sum(-1, keepdim=True).reciprocal()).to(x.dtype)


def rms_rounded_before_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(mean_of(wide * wide) + eps)).to(x.dtype) * weight


def gelu_by_exp(x: Tensor, how: str) -> Tensor:
    wide = x.float()
    if how == "none":
        return (0.5 * wide * torch.erfc(-wide * math.sqrt(0.5))).to(x.dtype)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide / (1 + torch.exp(-2 * inner))).to(x.dtype)


def gemm_dequantised(a: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor | None, *rest: Any) -> Tensor:
    """Weights rounded to half precision, then torch's product."""
    weight: Tensor = dequantized(qweight, scales, zeros, rest[1], a.dtype)
    return a.matmul(weight)


def gemm_split_k(a: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor | None, *rest: Any) -> Tensor:
    weight = dequantized(qweight, scales, zeros, rest[1], torch.float32)
    parts = [left.float() @ right for left, right in zip(a.split(128, 1), weight.split(128, 0), strict=True)]
    return torch.stack(parts).sum(0).to(a.dtype)


def gemm_zeros_apart(a: Tensor, qweight: Tensor, scales: Tensor, zeros: Tensor | None, *rest: Any) -> Tensor:
    """Raw products a group, minus the zero point times the activations' sum."""
    left = a.float().unflatten(1, (-1, rest[1]))
    raw = torch.einsum("mgk,gkn->mgn", left, unpack(qweight).float().unflatten(0, (-1, rest[1])))
    zero = 8.0 if zeros is None else zeros.float()
    products: Tensor = (raw - left.sum(-1, keepdim=True) * zero) * scales.float()
    return products.sum(1).to(a.dtype)


RIGHT: list[tuple[Op, str, Computation, Applies]] = [
    *[(op, "the reference itself", reference(op), everywhere) for op in BOX],
    (VECTOR_ADD, "torch", torch.add, everywhere),
    (SQUARE, "torch", torch.square, everywhere),
    (GELU, "torch", lambda x, how: torch.nn.functional.gelu(x, approximate=how), everywhere),
    (GELU, "by exp", gelu_by_exp, everywhere),
    (SOFTMAX, "torch", torch.softmax, everywhere),
    (SOFTMAX, "online", lambda x, dim: softmax_online(x), everywhere),
    (SOFTMAX, "exp2", softmax_exp2, everywhere),
    (SOFTMAX, "serial sum", softmax_with(serial_sum), everywhere),
    (RMS_NORM, "torch", lambda x, w, eps: torch.nn.functional.rms_norm(x, w.shape, w, eps), everywhere),
    (RMS_NORM, "serial sum", rms_with(lambda terms: serial_sum(terms) / terms.shape[-1]), everywhere),
    (RMS_NORM, "rounded before the weight", rms_rounded_before_weight, everywhere),
    (GEMM_INT4, "dequantised first", gemm_dequantised, everywhere),
    (GEMM_INT4, "split-K", gemm_split_k, everywhere),
    (GEMM_INT4, "zero points apart", gemm_zeros_apart, everywhere),
]


@pytest.mark.parametrize(("op", "problem", "compute"), cases(RIGHT))
def test_a_right_computation_is_accepted_on_every_kind(op: Op, problem: Problem, compute: Computation) -> None:
    refused = {kind: verdict.message for kind, verdict in verdicts(op, problem, compute) if not verdict.ok}
    assert not refused
