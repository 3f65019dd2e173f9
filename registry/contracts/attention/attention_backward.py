"""The gradients of attention by queries, keys and values, from its output and the log-sum-exp of each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Arguments, Problem, Value
from .. import fills
from ..rounding import fp32_weight, underflow, units
from .arguments import attention_examples, attention_problem, check_attention, check_results, drawn
from .attention import ATTENTION, OF_ROUNDINGS, attention_reference, logit_size, mask_bytes, of_sum, scored_call
from .logits import ScoredCall, ScoredRows, group_sums, grouped_product, seen_pairs


def attention_backward_reference(  # noqa: PLR0913, PLR0917  the schema's arguments
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
    need_q: bool = True,
    need_k: bool = True,
    need_v: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``grad_q``, ``grad_k`` and ``grad_v`` of ``attention``, like q, k and v, from its ``out`` and ``lse``.

    With ``p = exp(logits - lse)``: ``grad_v = p.T @ grad_out`` and, with ``d = p * (grad_out @ v.T - sum(grad_out *
    out)) * scale``, times the slope of the soft cap, ``grad_q = d @ k`` and ``grad_k = d.T @ q``; those of keys and
    values are sums over the heads that share them. grad_out is like out; lse has no gradient. Halves are computed in
    fp32, and rounded once. A row that sees no key adds nothing. A gradient that is not needed is an empty tensor.
    """
    call = ScoredCall.of((q, k, v), mask, causal, scale, softcap, window)
    heads = [x.transpose(1, 2).to(call.q.dtype) for x in (grad_out, out)]
    parts, sums = [], [torch.zeros_like(call.k), torch.zeros_like(call.v)]
    for span in call.spans():
        gradient = heads[0][:, :, span]
        rows = call.scored(span)
        weights = probabilities(rows, lse)
        if need_v:
            sums[1] += group_sums(weights, gradient, call.v.shape[1])
        if need_q or need_k:
            slopes = grouped_product(gradient, call.v.transpose(-1, -2))
            slopes = weights * (slopes - (gradient * heads[1][:, :, span]).sum(-1, keepdim=True)) * call.scale
            slopes = slopes if rows.slope is None else slopes * rows.slope
            parts.append(grouped_product(slopes, call.k))
            sums[0] += group_sums(slopes, call.q[:, :, span], call.k.shape[1])
    grad_q = torch.cat(parts, 2) if parts else call.q
    made = ((grad_q, need_q), (sums[0], need_k), (sums[1], need_v))
    grad_q, grad_k, grad_v = (
        x.transpose(1, 2).to(q.dtype).contiguous() if needed else q.new_empty(0) for x, needed in made
    )
    return grad_q, grad_k, grad_v


def probabilities(rows: ScoredRows, lse: torch.Tensor) -> torch.Tensor:
    """The weights of keys, [batch, heads, rows, kv_len]; 0 in a row that sees none."""
    found = lse[:, :, rows.span, None].to(rows.logits.dtype)
    return (rows.logits - found.masked_fill(found == -math.inf, 0.0)).exp()


def _outputs(
    _grad: Any, q: Any, k: Any, v: Any, _mask: Any, _out: Any, _lse: Any, _causal: Any, _scale: Any, _cap: Any,
    _window: Any, need_q: bool = True, need_k: bool = True, need_v: bool = True,
) -> list[Any]:  # fmt: skip
    return needed_gradients((q, need_q), (k, need_k), (v, need_v))


def needed_gradients(*given: tuple[Any, bool]) -> list[Any]:
    """Shape and dtype of the gradient of each tensor; of one that is not needed an empty tensor's."""
    return [(x.shape if needed else (0,), x.dtype) for x, needed in given]


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    q = arguments.tensor("q").shape
    dims = attention_problem(arguments)
    check_results(arguments, (q[0], q[2], q[1]))
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    q, k, v, mask, *attributes = drawn(problem, kind, generator)
    grad_out = fills.normal(tuple(q.shape), q.dtype, generator)
    if q.is_meta:
        rows = (problem.batch, problem.heads, problem.q_len)
        out, lse = torch.empty_like(q), q.new_empty(rows, dtype=torch.promote_types(q.dtype, torch.float32))
    else:
        out, lse = attention_reference(q, k, v, mask, *attributes)
    return grad_out, q, k, v, mask, out, lse, *attributes, True, True, True


def gradient_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any], of: str) -> torch.Tensor:
    """Relative to each gradient and to the root of its summands' squares, as for the output of attention.

    Tensor cores round towards zero, so that the weights of equal logits err by one factor: to what those errors are if
    each has the sign of its summand, too.
    """
    weight, call = fp32_weight(problem), scored_call(values)
    sums = of_sum(call.kv_len if of == "q" else call.q.shape[2] * (problem.heads // problem.kv_heads))
    parts: list[torch.Tensor] = []
    for span in call.spans():
        apart, alike, other = _factor_errors(problem, call, values, of, span, weight, sums)
        if of == "q":
            parts.append(torch.stack([grouped_product(apart.square_(), other.square()), grouped_product(alike, other)]))
        else:
            pairs = ((apart.square_(), other.square()), (alike, other))
            part = torch.stack([group_sums(*pair, call.k.shape[1]) for pair in pairs])
            parts = [parts[0].add_(part) if parts else part]
    squares, together = torch.cat(parts, 3).transpose(2, 3).nan_to_num_(0.0, 0.0, 0.0)
    found: torch.Tensor = reference.abs() * (2.0 - weight + weight * sums) + squares.sqrt_() + together.abs_()
    return found


def _factor_errors(
    problem: Problem, call: ScoredCall, values: Mapping[str, Any], of: str, span: slice, weight: float, sums: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Errors of the weights or slopes of some query rows, each by itself and all of one sign, and what they multiply.

    Weights and slopes of halves are rounded before they are multiplied, below the normal numbers by as much as there.
    A slope is a difference that may cancel: in fp32 it errs as what it is a difference of, and as the logit of its
    weight. ``weight``: one rounding of fp32; ``sums``: roundings of a sum.
    """
    gradient, out = (values[name].transpose(1, 2)[:, :, span].double() for name in ("grad_out", "out"))
    rows, least = call.scored(span), torch.finfo(problem.torch_dtype).tiny
    hidden, rounding = rows.logits == -math.inf, OF_ROUNDINGS * (1.0 - weight)
    weights, of_logits = probabilities(rows, values["lse"]), 4.0 * weight * logit_size(call, rows.logits, span)
    error = weight * sums + of_logits
    if of == "v":
        apart, alike, other = (weights + least) * (rounding + error), weights * of_logits, gradient
    else:
        delta, lengths = (gradient * out).sum(-1, keepdim=True), call.v.norm(dim=-1)[:, :, None, :]
        slopes = weights * (grouped_product(gradient, call.v.transpose(-1, -2)) - delta)
        bound = grouped_product(gradient.norm(dim=-1, keepdim=True), lengths) + delta.abs()
        apart = ((slopes.abs() + least) * rounding + weights * bound * error) * abs(call.scale)
        alike = slopes * of_logits * call.scale * (1.0 if rows.slope is None else rows.slope)
        other = call.k if of == "q" else call.q[:, :, span]
    return apart.masked_fill_(hidden, 0.0), alike.masked_fill_(hidden, 0.0), other


def gradient_tolerance(scale: Callable[..., torch.Tensor]) -> Tolerance:
    """The tolerance of a gradient that errs relative to ``scale``, as ``gradient_scale`` has it."""
    return Tolerance(units(float32=2.0, half=1.1), underflow(128), scale)


def _scale_q(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    return gradient_scale(problem, reference, values, "q")


def _scale_k(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    return gradient_scale(problem, reference, values, "k")


def _scale_v(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    return gradient_scale(problem, reference, values, "v")


def _floor(problem: Problem) -> Floor:
    size, rows = problem.torch_dtype.itemsize, problem.batch * problem.heads * problem.q_len
    queries = rows * problem.head_dim
    keys = problem.batch * problem.kv_heads * problem.kv_len * problem.head_dim
    # q, out, both their gradients; k, v and their gradients
    moved = (4 * queries + 4 * keys) * size + rows * max(4, size) + mask_bytes(problem)
    return Floor(bytes=moved, flop=10 * problem.batch * problem.heads * problem.head_dim * seen_pairs(problem))


ATTENTION_BACKWARD = Op(
    name="attention_backward",
    schema=(
        "attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse,"
        " bool causal=False, float? scale=None, float softcap=0.0, int window=-1, bool need_q=True, bool need_k=True,"
        " bool need_v=True) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)"
    ),
    version=1,
    reference=attention_backward_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=gradient_tolerance(_scale_q),
    tolerances={
        "grad_k": gradient_tolerance(_scale_k),
        "grad_v": gradient_tolerance(_scale_v),
    },
    static=ATTENTION.static,
    dynamic=ATTENTION.dynamic,
    choices=ATTENTION.choices,
    kinds=ATTENTION.kinds,
    examples=attention_examples(),
    check=check_attention,
    independent=frozenset({"mask"}),
)
