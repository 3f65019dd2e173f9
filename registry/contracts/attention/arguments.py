"""Arguments of attention and of its gradient: their checks, their dimensions, and random ones of every kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...problem import Arguments, Problem, TensorSpec, Value, check_positive, dtype_name
from ...tracing import refuse
from .. import fills
from ..checks import FLOATS, float_dtype, float_tensor, positive, same_dtype, shape_text
from .logits import ENDLESS, window_of

MASKS = ("none", "bool", "additive")
KINDS = ("normal", "outliers", "edges", "spike_last", "constant", "masked")
STATIC = frozenset({"heads", "kv_heads", "head_dim", "span", "dtype"})
DYNAMIC = frozenset({"batch", "q_len", "kv_len"})
CHOICES: Mapping[str, tuple[Value, ...]] = {"causal": (False, True), "mask": MASKS, "softcap": (False, True)}

_LEAST_CAP = 1e-30
"""The smallest soft cap: that by which kernels divide logits in float32."""

CAP = 20.0
"""The soft cap of the inputs: Gemma 2's is 50, of logits that are larger than these."""


def attention_problem(arguments: Arguments) -> Mapping[str, Value]:
    """Dimensions of ``q``, ``k``, ``v`` and ``mask`` and of the attributes, forward and backward."""
    q, k = checked_heads(
        arguments,
        ("batch", "length"),
        ("[batch, q_len, heads, head_dim]", "[batch, kv_len, kv_heads, head_dim]"),
        "heads before length, as torch's attention has them: {}.transpose(1, 2), without a copy",
    )
    scoring = scoring_dims(arguments)
    return {
        "batch": q.shape[0],
        "heads": q.shape[2],
        "kv_heads": k.shape[2],
        "q_len": q.shape[1],
        "kv_len": k.shape[1],
        "head_dim": q.shape[3],
        "causal": scoring["causal"],
        "mask": _mask_kind(arguments, q, k),
        "softcap": scoring["softcap"],
        "span": scoring["span"],
        "dtype": dtype_name(q.dtype),
    }


def scoring_dims(arguments: Arguments) -> dict[str, Value]:
    """The dimensions causal, softcap and span of a call. Raises InvalidArgumentError for wrong attributes."""
    op, window = arguments.op, arguments.integer("window")
    softcap, scale = arguments.number("softcap"), arguments["scale"]
    if softcap != 0.0 and not _LEAST_CAP <= softcap < math.inf:
        refuse(
            f"{op}: softcap={softcap}",
            hint=f"expected a finite number of at least {_LEAST_CAP}, or 0 for logits without a cap",
        )
    if isinstance(scale, float) and not math.isfinite(scale):
        refuse(f"{op}: scale={scale}", hint="expected a finite number, or None for 1 / sqrt(head_dim)")
    if window < -1:
        refuse(f"{op}: window={window}", hint="expected the keys that are seen before the query's own, or -1 for all")
    return {
        "causal": arguments.flag("causal"),
        "softcap": softcap > 0.0,
        "span": window + 1 if 0 <= window < ENDLESS else False,
    }


def checked_heads(
    arguments: Arguments, places: tuple[str, ...], layouts: tuple[str, str], hint: str
) -> tuple[TensorSpec, TensorSpec]:
    """``q``, and ``k`` like which ``v`` is: heads and their width are the last dimensions, behind ``places``.

    Raises InvalidArgumentError for those that do not go together. All but the last of ``places`` are common to q and k.

    layouts  how messages write the shapes of q and of k
    hint     what to do with a tensor of other dimensions, {} for its name
    """
    op = arguments.op
    q, k, v = (float_tensor(arguments, name) for name in ("q", "k", "v"))
    for name, spec in (("q", q), ("k", k), ("v", v)):
        if len(spec.shape) != len(places) + 2 or 0 in spec.shape[-2:]:
            raise InvalidArgumentError(
                f"{op}: {name} has shape {shape_text(spec.shape)}, expected [{', '.join(places)}, heads, head_dim]",
                hint=hint.format(name),
            )
        same_dtype(op, ("q", q), (name, spec))
    if k.shape != v.shape:
        raise InvalidArgumentError(
            f"{op}: k is {shape_text(k.shape)} but v is {shape_text(v.shape)}", hint="expected tensors of one shape"
        )
    if (*q.shape[: len(places) - 1], q.shape[-1]) != (*k.shape[: len(places) - 1], k.shape[-1]):
        raise InvalidArgumentError(
            f"{op}: q is {shape_text(q.shape)} but k is {shape_text(k.shape)}",
            hint=f"expected {layouts[0]} and {layouts[1]}",
        )
    if q.shape[-2] % k.shape[-2]:
        raise InvalidArgumentError(
            f"{op}: q has {q.shape[-2]} heads but k has {k.shape[-2]}",
            hint="expected as many heads of q for each head of k: the latter must divide the former",
        )
    return q, k


def _mask_kind(arguments: Arguments, q: TensorSpec, k: TensorSpec) -> str:
    op = arguments.op
    if arguments["mask"] is None:
        return "none"
    mask, (batch, rows, heads) = arguments.tensor("mask"), q.shape[:3]
    fits = len(mask.shape) == 4 and mask.shape[2:] == (rows, k.shape[1])
    if not fits or mask.shape[0] not in {1, batch} or mask.shape[1] not in {1, heads}:
        raise InvalidArgumentError(
            f"{op}: mask has shape {shape_text(mask.shape)}, expected"
            f" [{batch} or 1, {heads} or 1, {rows}, {k.shape[1]}]",
            hint="mask.expand(-1, -1, q_len, -1) of a mask of keys alone, mask[None, None] of one for all",
        )
    if mask.dtype == torch.bool:
        return "bool"
    if mask.dtype != q.dtype:
        raise InvalidArgumentError(
            f"{op}: mask is {dtype_name(mask.dtype)}, expected bool (True: a key is seen) or {dtype_name(q.dtype)}",
            hint="convert it: mask.to(q.dtype) of one that is added, mask.bool() of one of 0 and 1",
        )
    return "additive"


def check_results(arguments: Arguments, lse_shape: tuple[int, ...]) -> None:
    """Raise InvalidArgumentError unless out and grad_out are like q, and lse is float32 or wider and of this shape."""
    op, q, lse = arguments.op, arguments.tensor("q"), arguments.tensor("lse")
    for name in ("grad_out", "out"):
        spec = arguments.tensor(name)
        if spec.shape != q.shape:
            raise InvalidArgumentError(
                f"{op}: {name} is {shape_text(spec.shape)} but q is {shape_text(q.shape)}",
                hint="the output and its gradient have the shape of q; grad_out.expand_as(out) if it was reduced",
            )
        same_dtype(op, ("q", q), (name, spec))
    wide = torch.promote_types(q.dtype, torch.float32)
    if lse.shape != lse_shape or lse.dtype != wide:
        raise InvalidArgumentError(
            f"{op}: lse is {dtype_name(lse.dtype)} of shape {shape_text(lse.shape)},"
            f" expected {dtype_name(wide)} of shape {shape_text(lse_shape)}",
            hint=f"it is the second output of {op.removesuffix('_backward')}",
        )


def check_attention(problem: Problem) -> None:
    """Raise InvalidArgumentError for dimensions that no call has."""
    positive(problem, "batch", "q_len", "kv_len")
    check_scoring(problem)


def check_scoring(problem: Problem) -> None:
    """Raise InvalidArgumentError for heads, a dtype or a span that no call has."""
    positive(problem, "heads", "kv_heads", "head_dim")
    float_dtype(problem)
    if problem.heads % problem.kv_heads:
        raise InvalidArgumentError(
            f"{problem.op}: heads={problem.heads} but kv_heads={problem.kv_heads}", hint="the latter divide the former"
        )
    if problem.span is not False:
        check_positive(problem.op, "span", problem.span)
        if problem.span > ENDLESS:
            raise InvalidArgumentError(
                f"{problem.op}: span={problem.span}", hint=f"at most {ENDLESS} keys, or false where all are seen"
            )


def drawn(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """q, k, v, mask, causal, scale, softcap and window of every kind."""
    dtype, width = problem.torch_dtype, problem.head_dim
    q = fills.normal((problem.batch, problem.q_len, problem.heads, width), dtype, generator)
    k, v = (fills.normal((problem.batch, problem.kv_len, problem.kv_heads, width), dtype, generator) for _ in range(2))
    # a number as for calls without a scale, or another one: one plan answers both
    scale = width**-0.5
    if kind == "outliers":
        # logits of thousands, whose exponentials overflow, and large values
        for x, magnitude in ((q, 200.0), (k, 200.0), (v, 1000.0)):
            fills.plant_outliers(x, magnitude, generator)
        scale = 0.11
    elif kind == "edges":
        _aim(problem, q, k)
    elif kind == "spike_last":
        # the last key has most of the weight of every query that sees it
        q[..., 0], k[:, -1, :, 0] = 4.0, 2.0 * math.sqrt(width)
        v[:, -1] = 8.0
    elif kind == "constant":
        # exp(-64) of equal logits: without the maximum subtracted a half is lost, and every key weighs the same
        q.fill_(4.0)
        k.fill_(-16.0 / math.sqrt(width))
    elif kind == "masked":
        # few keys weigh anything, which a mask may hide
        q.mul_(4.0)
    softcap = CAP if problem.softcap else 0.0
    return q, k, v, _mask(problem, kind, generator), problem.causal, scale, softcap, window_of(problem)


def _aim(problem: Problem, q: torch.Tensor, k: torch.Tensor) -> None:
    """Make queries in turn attend to keys at the ends of what they see, or just beyond, which must not be seen."""
    rows, keys, heads = problem.q_len, problem.kv_len, problem.heads // problem.kv_heads
    window = max(window_of(problem), 0)
    row = torch.arange(rows, device=q.device)
    offset = torch.tensor((0, 1, -window, -window - 1, window, window + 1), device=q.device)
    place = (row + (keys - rows) + offset[row % 6]).clamp(0, keys - 1)
    q.copy_(3.0 * k[:, place].repeat_interleave(heads, 2))


def _mask(problem: Problem, kind: str, generator: torch.Generator) -> torch.Tensor | None:
    """A mask of each batch, for all heads; of "masked" some rows see no key."""
    if problem.mask == "none":
        return None
    shape, device = (problem.batch, 1, problem.q_len, problem.kv_len), generator.device
    draw = torch.randint(8, shape, device=device, generator=generator, dtype=torch.uint8)
    hidden = draw < (4 if kind == "masked" else 1)
    if kind == "masked":
        hidden[:, :, ::3] = True
    if problem.mask == "bool":
        return ~hidden
    mask = fills.normal(shape, problem.torch_dtype, generator)
    if mask.is_meta:
        return mask
    mask.masked_fill_(hidden, -math.inf)
    if kind == "masked":
        # a row of the lowest numbers, as transformers writes them, which all weigh the same
        mask[:, :, 1::3] = torch.finfo(mask.dtype).min
    return mask


_SIZES = (
    # batch, heads, kv_heads, q_len, kv_len, head_dim
    (1, 1, 1, 1, 1, 8),
    (2, 4, 2, 33, 33, 16),
    (1, 3, 1, 7, 70, 20),
    (1, 2, 2, 41, 17, 64),
    (1, 6, 3, 65, 97, 40),
    (3, 2, 1, 5, 200, 32),
)
_FORMS = (
    # causal, mask, softcap, span
    (True, "none", False, False),
    (False, "none", False, False),
    (True, "additive", False, False),
    (True, "none", True, 12),
    (False, "bool", False, False),
    (False, "none", False, 9),
    (True, "bool", True, False),
    (False, "additive", True, 30),
)


def attention_examples() -> tuple[Mapping[str, Value], ...]:
    """Thirteen small problems, most sizes odd, with every form; one in float64."""
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    pairs = _varied()
    pairs.append((torch.float64, _SIZES[1], _FORMS[0]))
    return tuple(
        {
            **dict(zip(names, size, strict=True)),
            **dict(zip(("causal", "mask", "softcap", "span"), form, strict=True)),
            "dtype": dtype_name(dtype),
        }
        for dtype, size, form in pairs
    )


def _varied() -> list[tuple[torch.dtype, tuple[int, ...], tuple[Any, ...]]]:
    """Twelve problems, each with other sizes and form: every size in two dtypes, every form in one or two."""
    return [
        (
            FLOATS[(place + place // 3) % len(FLOATS)],
            _SIZES[place % len(_SIZES)],
            _FORMS[(5 * place + 3 * (place // 3)) % len(_FORMS)],
        )
        for place in range(12)
    ]
