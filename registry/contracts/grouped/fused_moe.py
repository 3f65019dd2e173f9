"""fused_moe: the gated MLPs of a layer's experts, for all tokens at once, as vLLM's op of that name.

Activations between the two products are rounded to the dtype, since that is what the tensor cores take. float32 is
multiplied in float32: never in TF32 unless the process has asked torch for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Backward, Floor, Op, Tolerance
from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, Value, check_choice, dtype_name
from ...tracing import contents_known
from .. import fills
from ..checks import AS_FIRST, FLOATS, float_dtype, float_tensor, index_tensor, positive, same_dtype, shape_text
from ..rounding import fp32_weight, underflow, units
from ..segments import check_number_of
from .expert_ids import busy, check_ids_data, draw_ids, plant_nobody
from .routing import ROUTING

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
KINDS = ("normal", "outliers", "spike_last", "spike_inner", "gaps")
"""Kinds of inputs. spike_inner: the last activation between the products outweighs all others. gaps: some tokens lack
an expert, some have none."""

_Tensor = torch.Tensor
_FUNCTIONS: Mapping[str, Callable[[_Tensor], _Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def fused_moe_reference(
    x: _Tensor, w13: _Tensor, w2: _Tensor, topk_weights: _Tensor, topk_ids: _Tensor, activation: str = "silu"
) -> _Tensor:
    """``y[t] = sum over j of topk_weights[t, j] * w2[e] @ (act(gate) * up)``, e being ``topk_ids[t, j]``.

    x is ``[tokens, hidden]``, w13 ``[experts, 2 * intermediate, hidden]``, w2 ``[experts, hidden, intermediate]``, y
    ``[tokens, hidden]``; topk_weights is ``[tokens, top_k]`` in float32 or x's dtype, topk_ids int32 or int64. gate is
    the first half of ``w13[e] @ x[t]``, up the second. An id outside of 0 to ``experts - 1`` is no expert: it adds
    nothing, and its weight is not read; nor is the x of a token without any expert, whose y is 0. Products and sums in
    at least float32; ``act(gate) * up`` is rounded to x's dtype, and the sum.

    Where torch traces it, as it does a transform of torch.func in a compiled program, and under vmap, each expert takes
    all tokens, since sizes must not depend on the ids there.
    """
    if not contents_known(topk_ids):
        return _every_token_by_every_expert(x, w13, w2, topk_weights, topk_ids, activation)
    wide, (tokens, top_k), hidden = torch.promote_types(x.dtype, torch.float32), topk_ids.shape, x.shape[1]
    ids, weights = topk_ids.reshape(-1), topk_weights.reshape(-1, 1).to(wide)
    # one part of y for each token and each of its experts; out of place, so that torch.func can differentiate it
    pairs, parts = [ids.new_empty(0, dtype=torch.int64)], [x.new_empty(0, hidden, dtype=wide)]
    for expert, (into, back) in enumerate(zip(w13, w2, strict=True)):
        pair = (ids == expert).nonzero()[:, 0]
        # the first expert also without tokens: autograd records the products of a call that has none
        if expert == 0 or pair.numel():
            pairs.append(pair)
            parts.append(weights[pair] * _expert_mlp(x[pair // top_k].to(wide), into, back, x.dtype, activation))
    zeros = x.new_zeros(tokens * top_k, hidden, dtype=wide)
    found = zeros.index_copy(0, torch.cat(pairs), torch.cat(parts))
    return found.view(tokens, top_k, hidden).sum(1).to(x.dtype)


def _expert_mlp(rows: _Tensor, into: _Tensor, back: _Tensor, dtype: torch.dtype, activation: str) -> _Tensor:
    """One expert's outputs of rows, in their dtype; what is between the products is rounded to ``dtype``."""
    gate, up = (rows @ into.to(rows.dtype).T).chunk(2, -1)
    inner = (_FUNCTIONS[activation](gate) * up).to(dtype).to(rows.dtype)
    return inner @ back.to(rows.dtype).T


def _every_token_by_every_expert(
    x: _Tensor, w13: _Tensor, w2: _Tensor, topk_weights: _Tensor, topk_ids: _Tensor, activation: str
) -> _Tensor:
    """The reference without a size that depends on the ids."""
    wide = torch.promote_types(x.dtype, torch.float32)
    total = torch.zeros_like(x, dtype=wide)
    for expert, (into, back) in enumerate(zip(w13, w2, strict=True)):
        taken = topk_ids == expert
        absent = ~taken.any(-1, keepdim=True)
        share = topk_weights.to(wide).masked_fill(~taken, 0.0).sum(-1, keepdim=True)
        made = _expert_mlp(x.to(wide).masked_fill(absent, 0.0), into, back, x.dtype, activation)
        total = total + (share * made).masked_fill(absent, 0.0)
    return total.to(x.dtype)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    op, activation = arguments.op, arguments.text("activation")
    check_choice(op, "activation", activation, ACTIVATIONS)
    x, w13, w2 = (float_tensor(arguments, name) for name in ("x", "w13", "w2"))
    same_dtype(op, ("x", x), ("w13", w13))
    same_dtype(op, ("x", x), ("w2", w2))
    if len(w2.shape) != 3 or 0 in w2.shape:
        raise InvalidArgumentError(
            f"{op}: w2 has shape {shape_text(w2.shape)}", hint="expected [experts, hidden, intermediate], none 0"
        )
    experts, hidden, intermediate = w2.shape
    if w13.shape != (experts, 2 * intermediate, hidden):
        raise InvalidArgumentError(
            f"{op}: w13 has shape {shape_text(w13.shape)} but w2 is {shape_text(w2.shape)}",
            hint=f"expected [{experts}, {2 * intermediate}, {hidden}]: each expert's gate projection, then its up"
            " projection, torch.cat((gate, up), 1)",
        )
    if len(x.shape) != 2 or x.shape[1] != hidden:
        raise InvalidArgumentError(
            f"{op}: x has shape {shape_text(x.shape)} but w2 is {shape_text(w2.shape)}",
            hint=f"expected [tokens, {hidden}]; of [batch, seq, {hidden}] make tokens: x.flatten(0, -2)",
        )
    sizes: dict[str, Value] = {"hidden": hidden, "intermediate": intermediate, "experts": experts}
    top_k = _top_k(arguments, x.shape[0])
    _check_top_k(op, top_k, experts)
    choice: dict[str, Value] = {"top_k": top_k, "activation": activation}
    return {"tokens": x.shape[0], **sizes, **choice, "dtype": dtype_name(x.dtype)}


def _top_k(arguments: Arguments, tokens: int) -> int:
    """The experts of a token. Raises InvalidArgumentError unless ids and weights are ``[tokens, top_k]``."""
    op, ids, weights = arguments.op, index_tensor(arguments, "topk_ids"), arguments.tensor("topk_weights")
    if len(ids.shape) != 2 or ids.shape[0] != tokens or not ids.shape[1]:
        raise InvalidArgumentError(
            f"{op}: topk_ids has shape {shape_text(ids.shape)} but x has {tokens} rows",
            hint=f"expected [{tokens}, top_k], the experts of each token, e.g. from topk_softmax",
        )
    if weights.shape != ids.shape:
        raise InvalidArgumentError(
            f"{op}: topk_weights has shape {shape_text(weights.shape)} but topk_ids {shape_text(ids.shape)}",
            hint="expected a weight for each id",
        )
    dtype = arguments.tensor("x").dtype
    if weights.dtype not in (torch.float32, dtype):
        allowed = dict.fromkeys(("float32", dtype_name(dtype)))
        raise InvalidArgumentError(
            f"{op}: topk_weights is {dtype_name(weights.dtype)}, expected {' or '.join(allowed)}",
            hint="convert it: topk_weights.to(torch.float32)",
        )
    return int(ids.shape[1])


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    tokens, hidden, width, dtype = problem.tokens, problem.hidden, problem.intermediate, problem.torch_dtype
    w13 = fills.normal((problem.experts, 2 * width, hidden), dtype, generator).mul_(hidden**-0.5)
    w2 = fills.normal((problem.experts, hidden, width), dtype, generator).mul_(width**-0.5)
    x = fills.normal((tokens, hidden), dtype, generator)
    ids = draw_ids(problem, generator)
    logits = fills.normal((tokens, problem.top_k), torch.promote_types(dtype, torch.float32), generator)
    weights = logits.softmax(-1)
    if kind == "outliers":
        fills.plant_outliers(x, 60.0, generator)
    elif kind == "spike_last":
        # 64 times as large as all the other columns together
        x[:, -1:] = 8.0 * math.sqrt(hidden)
        fills.plant_in_rows(x, (torch.nan,), generator)
    elif kind == "spike_inner":
        x[:, 0] = 1.0
        for last in (width - 1, 2 * width - 1):
            w13[:, last].zero_()
            w13[:, last, 0] = math.sqrt(8.0 * math.sqrt(width))
    elif kind == "gaps":
        plant_nobody(ids, weights, x, problem.experts)
    return x, w13, w2, weights, ids, problem.activation


def _floor(problem: Problem) -> Floor:
    """Weights of the experts that have tokens are read once; ids and weights of 4 bytes."""
    tokens, hidden, pairs = problem.tokens, problem.hidden, problem.tokens * problem.top_k
    of_expert = 3 * problem.intermediate * hidden
    numbers = 2 * tokens * hidden + busy(problem) * of_expert
    return Floor(bytes=numbers * problem.torch_dtype.itemsize + 8 * pairs, flop=2 * pairs * of_expert)


def _check(problem: Problem) -> None:
    positive(problem, "tokens", "hidden", "intermediate", "experts", "top_k")
    check_number_of(problem, "experts")
    float_dtype(problem)
    _check_top_k(problem.op, problem.top_k, problem.experts)


def _check_top_k(op: str, top_k: int, experts: int) -> None:
    if top_k > experts:
        raise InvalidArgumentError(f"{op}: top_k={top_k} of {experts} experts", hint=f"expected 1 to {experts}")


def _scale(problem: Problem, reference: _Tensor) -> _Tensor:
    """Relative to each output, and to its token's root mean square: terms of both products may cancel.

    gate, up, the activation, its product, and each expert's output may be rounded to half on their own: with few terms
    one output in a hundred thousand errs by 5 roundings of the root mean square.
    """
    size, rms = reference.abs(), reference.square().mean(-1, keepdim=True).sqrt_()
    terms = math.sqrt(problem.hidden) + math.sqrt(problem.intermediate)
    return size + 3 * rms + (size + rms) * fp32_weight(problem) * (32 + 2 * terms)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd: one token, experts without tokens, all experts of a token, one expert."""
    shapes = ((1, 64, 48, 8, 2), (3, 33, 19, 5, 3), (40, 72, 32, 4, 2), (21, 24, 48, 9, 1), (9, 16, 16, 3, 3))
    chosen = [(activation, routing) for routing in ROUTING for activation in ACTIVATIONS]
    found: list[Mapping[str, Value]] = []
    for start, dtype in enumerate(FLOATS):
        for place, (tokens, hidden, intermediate, experts, top_k) in enumerate(shapes):
            activation, routing = chosen[(5 * start + 2 * place) % len(chosen)]
            sizes: dict[str, Value] = {"tokens": tokens, "hidden": hidden, "intermediate": intermediate}
            choice: dict[str, Value] = {"top_k": top_k, "activation": activation, "routing": routing}
            found.append({**sizes, "experts": experts, **choice, "dtype": dtype_name(dtype)})
    return tuple(found)


FUSED_MOE = Op(
    name="fused_moe",
    schema=(
        "fused_moe(Tensor x, Tensor w13, Tensor w2, Tensor topk_weights, Tensor topk_ids,"
        ' str activation="silu") -> Tensor y'
    ),
    version=1,
    reference=fused_moe_reference,
    fake=AS_FIRST,
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=3.0), underflow(4), _scale),
    static=frozenset({"hidden", "intermediate", "experts", "top_k", "dtype"}),
    dynamic=frozenset({"tokens"}),
    choices={"activation": ACTIVATIONS},
    distributions={"routing": ROUTING},
    kinds=KINDS,
    examples=_examples(),
    check=_check,
    check_data=partial(check_ids_data, "fused_moe"),
    backward=Backward.reference(),
    weights=frozenset({"w13", "w2"}),
)
