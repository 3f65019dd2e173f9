"""Tolerances, proved both ways: some kind of inputs refuses each mutant, every kind accepts right computations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from registry.contract import Op, Outputs, as_tuple
from registry.contracts import (
    BOX as ALL,
)
from registry.contracts import (
    GELU,
    GELU_BACKWARD,
    GEMM_INT4,
    GEMM_INT4_BACKWARD,
    LINEAR,
    LINEAR_BACKWARD,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
    SQUARE,
    SQUARE_BACKWARD,
    VECTOR_ADD,
)
from registry.correctness import numerics
from registry.packed import dequantized, unpack
from registry.problem import Problem, Value

from ..tiers import one_of_each

Tensor = torch.Tensor
Computation = Callable[..., Outputs]
ELSEWHERE = re.compile(
    r"(gemm_(int[128]|nf4|sparse24|w4a16|w[48]a8)|.*_and_mul|layer_norm|(fused_linear_)?cross_entropy|attention(_varlen)?)(_backward)?"
    r"|(embedding|topk_softmax|grouped_gemm|grouped_gemm_int4|apply_rotary)(_backward)?"
    r"|fused_linear_cross_entropy_gradients|fused_moe|quantize_per_token|(grouped_)?scaled_mm|fused_add_rms_norm"
    r"|rotary_embedding|kv_cache_append|rotary_kv_append|attention_decode|mla_decode|top_k_top_p_sampling"
)
"""Ops whose mutants are in files of their own."""
BOX = [op for op in ALL if not ELSEWHERE.fullmatch(op.name)]
BY_NAME = {op.name: op for op in BOX}
DTYPES = ("float32", "float16", "bfloat16", "float64")

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
    "gemm_int4_backward": [
        {"m": m, "n": n, "k": 256, "group_size": size, "bits": 4, "symmetric": symmetric}
        for m, n, size, symmetric in ((4, 4096, 128, False), (1, 2000, 32, True))
    ],
    "linear": [
        {"m": m, "n": 64, "k": k, "bias": bias} for m, k, bias in ((4, 4096, True), (1, 4096, False), (33, 512, True))
    ],
    "linear_backward": [{"m": m, "n": n, "k": 96, "bias": True} for m, n in ((512, 64), (7, 1000))],
    "square_backward": [{"n": 1000}, {"n": 65_537}],
    "gelu_backward": [{"n": 1001, "approximate": how} for how in ("none", "tanh")],
    "softmax_backward": [{"rows": 1, "cols": 128_256}, {"rows": 7, "cols": 1000}, {"rows": 500, "cols": 8}],
    "rms_norm_backward": [{"rows": 256, "cols": 2048}, {"rows": 7, "cols": 1000}],
}


@cache
def case(name: str, key: str, kind: str) -> tuple[Problem, tuple[Any, ...], tuple[Tensor, ...], tuple[float, ...]]:
    op, problem = BY_NAME[name], problems()[key]
    values = op.bind(op.inputs(problem, kind, torch.Generator().manual_seed(7)), {})
    reference = numerics.reference64(op, values)
    return problem, values, reference, numerics.own_error(op, problem, values, reference)


@cache
def problems() -> dict[str, Problem]:
    found = {}
    for op in BOX:
        for dtype in DTYPES[1:3] if op in (GEMM_INT4, GEMM_INT4_BACKWARD) else DTYPES:
            for dims in SIZES[op.name]:
                problem = op.problem_of({**dims, "dtype": dtype})
                found[problem.key] = problem
    return found


def verdicts(op: Op, problem: Problem, compute: Computation) -> Iterator[tuple[str, numerics.Comparison]]:
    for kind in op.kinds:
        _, values, reference, own = case(op.name, problem.key, kind)
        # which gradients are needed is no part of a formula
        given = [value for value, one in zip(values, op.parsed.parameters, strict=True) if "need_" not in one.name]
        yield kind, numerics.compare(op, problem, compute(*given), reference, own)


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


OUTPUTS = [
    pytest.param(key, place, id=f"{problem}-{name}")
    for key, problem in problems().items()
    for place, name in enumerate(BY_NAME[problem.op].parsed.outputs)
]


@pytest.mark.parametrize(
    ("key", "place", "mutant"),
    one_of_each(
        [
            pytest.param(*output.values, mutant, id=f"{output.id}-{mutant}")
            for output in OUTPUTS
            for mutant in OUTPUT_MUTANTS
        ],
        lambda key, place, mutant: (problems()[key].op, place, mutant),
    ),
)
@pytest.mark.few(20)
def test_an_output_mutant_is_refused_by_some_kind(key: str, place: int, mutant: str) -> None:
    problem = problems()[key]
    op = BY_NAME[problem.op]

    def damaged(*values: Any) -> Outputs:
        outputs = [output.clone() for output in as_tuple(op.reference(*values))]
        outputs[place] = OUTPUT_MUTANTS[mutant](outputs[place])
        return tuple(outputs)

    assert any(not verdict.ok for _, verdict in verdicts(op, problem, damaged))


def reference(op: Op) -> Callable[..., Tensor]:
    """The op's reference, known to return one tensor."""

    def compute(*values: Any) -> Tensor:
        y = op.reference(*values)
        assert isinstance(y, Tensor)
        return y

    return compute


gelu, rms_norm = reference(GELU), reference(RMS_NORM)
linear, linear_backward = reference(LINEAR), LINEAR_BACKWARD.reference
gelu_backward, softmax_backward = reference(GELU_BACKWARD), reference(SOFTMAX_BACKWARD)
OTHER = {"none": "tanh", "tanh": "none"}


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


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


def gemm_changed(change: Callable[[dict[str, Any]], None], op: Op = GEMM_INT4) -> Computation:
    """The reference on arguments that ``change`` has tampered with."""

    def compute(*values: Any) -> Tensor:
        named = {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in zip(op.parsed.names, values, strict=True)
        }
        change(named)
        return reference(op)(*named.values())

    return compute


def linear_stepwise(dtype: torch.dtype, step: int = 16) -> Computation:
    """So many products at a time, as a tensor core's k; the accumulator rounded to ``dtype`` in between."""

    def compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        total = torch.zeros(x.shape[0], weight.shape[0])
        for left, right in zip(x.float().split(step, 1), weight.float().split(step, 1), strict=True):
            total = (total + left @ right.T).to(dtype).float()
        return (total if bias is None else total + bias.float()).to(x.dtype)

    return compute


def linear_without(count: int) -> Computation:
    """The last ``count`` of K left out."""
    return lambda x, weight, bias: linear(x[:, :-count], weight[:, :-count], bias)


def linear_backward_stepwise(dtype: torch.dtype) -> Computation:
    """All three sums with the accumulator rounded to ``dtype``."""

    def compute(grad_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        def product(left: Tensor, right: Tensor) -> Tensor:
            total = torch.zeros(left.shape[0], right.shape[1])
            for one, other in zip(left.float().split(16, 1), right.float().split(16, 0), strict=True):
                total = (total + one @ other).to(dtype).float()
            return total.to(x.dtype)

        ones = torch.ones(1, grad_y.shape[0])
        return product(grad_y, weight), product(grad_y.T, x), product(ones, grad_y)[0]

    return compute


def forget_k(count: int, name: str = "a") -> Callable[[dict[str, Any]], None]:
    def change(named: dict[str, Any]) -> None:
        named[name][..., -count:] = 0

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


def softmax_backward_with(total: Callable[[Tensor], Tensor]) -> Computation:
    def compute(grad_y: Tensor, y: Tensor, dim: int) -> Tensor:
        return (y.float() * (grad_y.float() - total(y.float() * grad_y.float()))).to(y.dtype)

    return compute


def sum_of(terms: Tensor) -> Tensor:
    return terms.sum(-1, keepdim=True)


def rms_backward_with(
    square_mean: Callable[[Tensor], Tensor] | None = None,
    mean: Callable[[Tensor], Tensor] | None = None,
    rows: Callable[[Tensor], Tensor] | None = None,
) -> Computation:
    """The formula with one of its three sums made otherwise: of squares, of the projection, over rows."""

    def compute(grad_y: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        wide, gradient = x.float(), grad_y.float()
        inverse = torch.rsqrt((square_mean or mean_of)(wide * wide) + eps)
        unit, weighted = wide * inverse, gradient * weight.float()
        grad_x = (weighted - unit * (mean or mean_of)(weighted * unit)) * inverse
        grad_weight = rows(gradient * unit) if rows else (gradient * unit).sum(0)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype)

    return compute


def column_sum(dtype: torch.dtype, programs: int = 16) -> Callable[[Tensor], Tensor]:
    """Rows summed serially by each program, rounding to ``dtype`` at each step; the programs' sums in fp32."""

    def compute(terms: Tensor) -> Tensor:
        total = torch.zeros(programs, terms.shape[1])
        for rows in terms.split(programs):
            total[: rows.shape[0]] = (total[: rows.shape[0]] + rows).to(dtype).float()
        return total.sum(0)

    return compute


rms_backward = RMS_NORM_BACKWARD.reference

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
    *(
        (GEMM_INT4_BACKWARD, name, gemm_changed(change, GEMM_INT4_BACKWARD), applies)
        for name, change, applies in (
            ("last element of N left out", forget_k(1, "grad_y"), everywhere),
            ("scales of the next group", next_group("scales"), everywhere),
            ("zeros of the next group", next_group("zeros"), lambda p: not p.symmetric),
            ("scales of the next column", next_column, everywhere),
            ("zero points off by one", zero_off_by_one, everywhere),
            ("nibbles swapped", swapped_nibbles, everywhere),
        )
    ),
    (LINEAR, "last element of K left out", linear_without(1), everywhere),
    (LINEAR, "last 128 of K left out", linear_without(128), everywhere),
    (LINEAR, "bias left out", lambda x, w, b: linear(x, w), lambda p: p.bias),
    (LINEAR, "bias twice", lambda x, w, b: linear(x, w, b + b), lambda p: p.bias),
    (LINEAR, "bias of the next column", lambda x, w, b: linear(x, w, b.roll(1)), lambda p: p.bias),
    (LINEAR, "weight of the next column", lambda x, w, b: linear(x, w.roll(1, 0), b), everywhere),
    (LINEAR, "tf32", lambda x, w, b: linear(tf32(x), tf32(w), b), only_float32),
    (LINEAR, "bfloat16 accumulator", linear_stepwise(BRAIN), lambda p: p.k > 1000 or p.dtype != "bfloat16"),
    (LINEAR, "float16 accumulator", linear_stepwise(HALF), lambda p: not_bfloat16(p) and p.k > 1000),
    (
        LINEAR_BACKWARD,
        "last row not summed",
        lambda g, x, w, b: linear_backward(torch.cat([g[:-1], 0 * g[-1:]]), x, w, b),
        everywhere,
    ),
    (
        LINEAR_BACKWARD,
        "last output not summed",
        lambda g, x, w, b: linear_backward(torch.cat([g[:, :-1], 0 * g[:, -1:]], 1), x, w, b),
        everywhere,
    ),
    (
        LINEAR_BACKWARD,
        "rows averaged",
        lambda g, x, w, b: (*as_tuple(linear_backward(g, x, w, b))[:2], g.mean(0)),
        everywhere,
    ),
    (LINEAR_BACKWARD, "tf32", lambda g, x, w, b: linear_backward(tf32(g), tf32(x), w, b), only_float32),
    (LINEAR_BACKWARD, "bfloat16 accumulator", linear_backward_stepwise(BRAIN), not_bfloat16),
    (SQUARE_BACKWARD, "not doubled", lambda g, x: g * x, everywhere),
    (SQUARE_BACKWARD, "gradient ignored", lambda g, x: 2 * x, everywhere),
    (SQUARE_BACKWARD, "2 * x overflows", lambda g, x: (2 * x) * g, everywhere),
    (SQUARE_BACKWARD, "in bfloat16", lambda g, x: (2 * g.to(BRAIN) * x.to(BRAIN)).to(x.dtype), not_bfloat16),
    (SQUARE_BACKWARD, "tf32", lambda g, x: 2 * tf32(g) * tf32(x), only_float32),
    (GELU_BACKWARD, "gradient ignored", lambda g, x, how: gelu_backward(torch.ones_like(g), x, how), everywhere),
    (GELU_BACKWARD, "the other approximation", lambda g, x, how: gelu_backward(g, x, OTHER[how]), everywhere),
    (GELU_BACKWARD, "of relu", lambda g, x, how: g * (x > 0), everywhere),
    (GELU_BACKWARD, "density left out", lambda g, x, how: (g.float() * normal_cdf(x.float())).to(x.dtype), everywhere),
    (
        GELU_BACKWARD,
        "in bfloat16",
        lambda g, x, how: gelu_backward(g.to(BRAIN), x.to(BRAIN), how).to(x.dtype),
        not_bfloat16,
    ),
    (GELU_BACKWARD, "tf32", lambda g, x, how: gelu_backward(tf32(g), tf32(x), how), only_float32),
    (SOFTMAX_BACKWARD, "sum left out", softmax_backward_with(lambda t: torch.zeros_like(t[..., :1])), everywhere),
    (SOFTMAX_BACKWARD, "last column not summed", softmax_backward_with(lambda t: sum_of(t[..., :-1])), everywhere),
    (
        SOFTMAX_BACKWARD,
        "last partial block of 128 not summed",
        softmax_backward_with(lambda t: sum_of(t[..., : (t.shape[-1] - 1) // 128 * 128])),
        everywhere,
    ),
    (SOFTMAX_BACKWARD, "mean, not sum", softmax_backward_with(mean_of), everywhere),
    (
        SOFTMAX_BACKWARD,
        "gradient summed alone",
        lambda g, y, dim: y * (g - g.float().sum(-1, True).to(g.dtype)),
        everywhere,
    ),
    (SOFTMAX_BACKWARD, "not times y", lambda g, y, dim: g - (g * y).sum(-1, True), everywhere),
    (SOFTMAX_BACKWARD, "bfloat16 sum", softmax_backward_with(lambda t: lanes_sum(t, BRAIN)), lambda p: p.cols > 100),
    (SOFTMAX_BACKWARD, "float16 sum", softmax_backward_with(lambda t: lanes_sum(t, HALF)), only_float32),
    (SOFTMAX_BACKWARD, "tf32", lambda g, y, dim: softmax_backward(tf32(g), tf32(y), dim), only_float32),
    (RMS_NORM_BACKWARD, "projection left out", rms_backward_with(mean=torch.zeros_like), everywhere),
    (
        RMS_NORM_BACKWARD,
        "last column not projected",
        rms_backward_with(mean=lambda t: sum_of(t[..., :-1]) / t.shape[-1]),
        everywhere,
    ),
    (
        RMS_NORM_BACKWARD,
        "last column not squared",
        rms_backward_with(lambda t: sum_of(t[..., :-1]) / t.shape[-1]),
        everywhere,
    ),
    (RMS_NORM_BACKWARD, "eps ignored", lambda g, x, w, eps: rms_backward(g, x, w, 0.0), everywhere),
    (RMS_NORM_BACKWARD, "default eps", lambda g, x, w, eps: rms_backward(g, x, w, 1e-6), everywhere),
    (RMS_NORM_BACKWARD, "weight ignored", lambda g, x, w, eps: rms_backward(g, x, torch.ones_like(w), eps), everywhere),
    (
        RMS_NORM_BACKWARD,
        "weight of the next column",
        lambda g, x, w, eps: rms_backward(g, x, w.roll(1), eps),
        everywhere,
    ),
    (RMS_NORM_BACKWARD, "last row not summed", rms_backward_with(rows=lambda t: t[:-1].sum(0)), everywhere),
    (RMS_NORM_BACKWARD, "rows averaged", rms_backward_with(rows=lambda t: t.mean(0)), everywhere),
    (
        RMS_NORM_BACKWARD,
        "bfloat16 projection",
        rms_backward_with(mean=lambda t: lanes_sum(t, BRAIN) / t.shape[-1]),
        everywhere,
    ),
    (RMS_NORM_BACKWARD, "bfloat16 squares", rms_backward_with(lambda t: lanes_sum(t, BRAIN) / t.shape[-1]), everywhere),
    (RMS_NORM_BACKWARD, "float16 squares", rms_backward_with(lambda t: lanes_sum(t, HALF) / t.shape[-1]), everywhere),
    (RMS_NORM_BACKWARD, "bfloat16 sum over rows", rms_backward_with(rows=column_sum(BRAIN)), lambda p: p.rows > 100),
    (RMS_NORM_BACKWARD, "tf32", lambda g, x, w, eps: rms_backward(tf32(g), tf32(x), w, eps), only_float32),
]


def cases(of: list[tuple[Op, str, Computation, Applies]], dtypes: tuple[str, ...] = DTYPES) -> list[Any]:
    return [
        pytest.param(op, problem, compute, id=f"{problem}-{name}")
        for op, name, compute, applies in of
        for problem in problems().values()
        if problem.op == op.name and problem.dtype in dtypes and applies(problem)
    ]


def _of_an_op(op: Op, problem: Problem, compute: Computation) -> object:
    return op.name, compute


@pytest.mark.parametrize(("op", "problem", "compute"), one_of_each(cases(MUTANTS), _of_an_op))
@pytest.mark.few(28)
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


def gelu_backward_by_tanh(grad_y: Tensor, x: Tensor, how: str) -> Tensor:
    """The slope as most kernels have it: ``1 - tanh(u) ** 2``, which cancels."""
    wide = x.float()
    if how == "none":
        slope = 0.5 * (1 + torch.erf(wide * math.sqrt(0.5))) + wide * torch.exp(-0.5 * wide**2) / math.sqrt(2 * math.pi)
    else:
        tanh = torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
        inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * wide**2)
        slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh * tanh) * inner
    return (grad_y.float() * slope).to(x.dtype)


def softmax_backward_of_products(grad_y: Tensor, y: Tensor, dim: int) -> Tensor:
    """``y * g - y * sum``, as Inductor has it."""
    products = y.float() * grad_y.float()
    return (products - y.float() * products.sum(dim, keepdim=True)).to(y.dtype)


def rms_backward_by_autograd(grad_y: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, ...]:
    x, weight = (tensor.detach().clone().float().requires_grad_() for tensor in (x, weight))
    y = torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    gradients = torch.autograd.grad(y, (x, weight), grad_y.float())
    return tuple(gradient.to(grad_y.dtype) for gradient in gradients)


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
    *[(op, "the reference itself", op.reference, everywhere) for op in BOX],
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
    (LINEAR, "torch", torch.nn.functional.linear, everywhere),
    (LINEAR, "one k after the other", linear_stepwise(torch.float32, 1), lambda p: p.k < 1000),
    (LINEAR, "16 k at a time", linear_stepwise(torch.float32), everywhere),
    (LINEAR_BACKWARD, "16 terms at a time", linear_backward_stepwise(torch.float32), lambda p: p.m % 16 == 0),
    (SQUARE_BACKWARD, "product rounded first", lambda g, x: g * x * 2, everywhere),
    (GELU_BACKWARD, "torch", lambda g, x, how: torch.ops.aten.gelu_backward(g, x, approximate=how), everywhere),
    (GELU_BACKWARD, "by tanh and erf", gelu_backward_by_tanh, everywhere),
    (
        SOFTMAX_BACKWARD,
        "torch",
        lambda g, y, dim: torch.ops.aten._softmax_backward_data(g, y, dim, y.dtype),
        everywhere,
    ),
    (SOFTMAX_BACKWARD, "serial sum", softmax_backward_with(serial_sum), everywhere),
    (SOFTMAX_BACKWARD, "products first", softmax_backward_of_products, everywhere),
    (RMS_NORM_BACKWARD, "autograd", rms_backward_by_autograd, everywhere),
    (RMS_NORM_BACKWARD, "serial squares", rms_backward_with(lambda t: serial_sum(t) / t.shape[-1]), everywhere),
    (RMS_NORM_BACKWARD, "serial projection", rms_backward_with(mean=lambda t: serial_sum(t) / t.shape[-1]), everywhere),
    (RMS_NORM_BACKWARD, "rows by program", rms_backward_with(rows=column_sum(torch.float32)), everywhere),
]


# these accumulate in float32
@pytest.mark.parametrize(("op", "problem", "compute"), one_of_each(cases(RIGHT, DTYPES[:3]), _of_an_op))
@pytest.mark.few(16)
def test_a_right_computation_is_accepted_on_every_kind(op: Op, problem: Problem, compute: Computation) -> None:
    refused = {kind: verdict.message for kind, verdict in verdicts(op, problem, compute) if not verdict.ok}
    assert not refused


@pytest.mark.parametrize("how", ["none", "tanh"])
@pytest.mark.parametrize("op", [GELU, GELU_BACKWARD], ids=lambda op: op.name)
@pytest.mark.few(2)
def test_torchs_own_gelu_is_accepted_at_every_argument(op: Op, how: str) -> None:
    """Its vectorized erf errs most in places that random inputs meet once in many runs."""
    x = torch.linspace(-8, 8, 1_000_001)
    problem = Problem(op.name, {"n": len(x), "dtype": "float32", "approximate": how})
    values = (x, how) if op is GELU else (torch.ones_like(x), x, how)
    own = getattr(torch.ops.aten, op.name)(*values[:-1], approximate=how)
    verdict = numerics.compare(op, problem, own, numerics.reference64(op, values), (0.0,))
    assert verdict.ok, verdict.message
