"""The gradients of attention_varlen, from its output and the log-sum-exp of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Floor, Op, RowMajor
from ...problem import Arguments, Problem, Value
from .. import fills
from .arguments import check_results
from .attention_backward import attention_backward_reference, gradient_scale, gradient_tolerance, needed_gradients
from .packed_lengths import PACKED_LENGTHS, drawn_lengths, packed_pairs, tokens_of
from .varlen import ATTENTION_VARLEN, attended, sequence_bounds
from .varlen_arguments import KINDS, check_varlen, check_varlen_data, varlen_examples, varlen_inputs, varlen_problem


def attention_varlen_backward_reference(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    grad_out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
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
    """``attention_backward`` of each sequence by itself: ``grad_q``, ``grad_k`` and ``grad_v``, like q, k and v.

    grad_out and out are like q, [total_q, heads, head_dim]; lse is attention_varlen's, [heads, total_q], and has no
    gradient. Keys of a sequence without queries have the gradient 0, and so have queries that see no key. A gradient
    that is not needed is an empty tensor.

    Of offsets that do not begin with 0, decrease or do not end with the number of tokens the result is unspecified, but
    nothing outside of the tensors is read or written.
    """
    needs = (need_q, need_k, need_v)
    made = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
    for rows, keys in _filled(q, k, cu_seqlens_q, cu_seqlens_k):
        found = attention_backward_reference(
            grad_out[None, rows], q[None, rows], k[None, keys], v[None, keys], None, out[None, rows],
            lse[None, :, rows], causal, scale, softcap, window, *needs,
        )  # fmt: skip
        for whole, part, tokens, needed in zip(made, found, (rows, keys, keys), needs, strict=True):
            if needed:
                whole[tokens] = part[0]
    grad_q, grad_k, grad_v = (x if needed else x.new_empty(0) for x, needed in zip(made, needs, strict=True))
    return grad_q, grad_k, grad_v


def _filled(
    q: torch.Tensor, k: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor
) -> Iterator[tuple[slice, slice]]:
    """The queries and the keys of each sequence that has both."""
    for rows, keys in sequence_bounds(q, k, cu_seqlens_q, cu_seqlens_k):
        if rows.stop > rows.start and keys.stop > keys.start:
            yield rows, keys


def _outputs(
    _grad: Any, q: Any, k: Any, v: Any, _cu_q: Any, _cu_k: Any, _out: Any, _lse: Any, _causal: Any, _scale: Any,
    _cap: Any, _window: Any, need_q: bool = True, need_k: bool = True, need_v: bool = True,
) -> list[Any]:  # fmt: skip
    return needed_gradients((q, need_q), (k, need_k), (v, need_v))


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    dims, q = varlen_problem(arguments), arguments.tensor("q").shape
    check_results(arguments, (q[1], q[0]))
    return dims


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    given = varlen_inputs(problem, kind, generator)
    q, (k, v, *offsets), attributes = given[0], given[1:5], given[5:]
    grad_out = fills.normal(tuple(q.shape), q.dtype, generator)
    if q.is_meta:
        sums = (problem.heads, problem.total_q)
        out, lse = torch.empty_like(q), q.new_empty(sums, dtype=torch.promote_types(q.dtype, torch.float32))
    else:
        # by the lengths as they were drawn: a device need not be waited for
        rows, keys = map(tokens_of, drawn_lengths(problem, generator, kind == "empty"))
        out, lse = attended(q, k, v, list(zip(rows, keys, strict=True)), *attributes)
    return grad_out, q, k, v, *offsets, out, lse, *attributes, True, True, True


def _scale(of: str, problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """The scale of attention's gradient by ``of``, sequence by sequence."""
    whole = reference.abs()
    offsets = (values[name] for name in ("cu_seqlens_q", "cu_seqlens_k"))
    for rows, keys in _filled(values["q"], values["k"], *offsets):
        part = {**values, "mask": None, "lse": values["lse"][None, :, rows]}
        part |= {name: values[name][None, rows] for name in ("grad_out", "q", "out")}
        part |= {name: values[name][None, keys] for name in ("k", "v")}
        tokens = rows if of == "q" else keys
        whole[tokens] = gradient_scale(problem, reference[None, tokens], part, of)[0].to(whole.dtype)
    return whole


def _floor(problem: Problem) -> Floor:
    size, rows = problem.torch_dtype.itemsize, problem.total_q * problem.heads
    # q, out, both their gradients; k, v and their gradients
    elements = 4 * (rows + problem.total_k * problem.kv_heads) * problem.head_dim
    moved = elements * size + rows * max(4, size) + 8 * (problem.sequences + 1)
    return Floor(bytes=moved, flop=10 * problem.heads * problem.head_dim * packed_pairs(problem))


ATTENTION_VARLEN_BACKWARD = Op(
    name="attention_varlen_backward",
    schema=(
        "attention_varlen_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q,"
        " Tensor cu_seqlens_k, Tensor out, Tensor lse, bool causal=False, float? scale=None, float softcap=0.0,"
        " int window=-1, bool need_q=True, bool need_k=True, bool need_v=True)"
        " -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)"
    ),
    version=1,
    reference=attention_varlen_backward_reference,
    fake=RowMajor(_outputs),
    problem=_problem,
    inputs=_inputs,
    floor=_floor,
    tolerance=gradient_tolerance(partial(_scale, "q")),
    tolerances={
        "grad_k": gradient_tolerance(partial(_scale, "k")),
        "grad_v": gradient_tolerance(partial(_scale, "v")),
    },
    static=ATTENTION_VARLEN.static,
    dynamic=ATTENTION_VARLEN.dynamic,
    choices=ATTENTION_VARLEN.choices,
    distributions={"lengths": PACKED_LENGTHS},
    kinds=KINDS,
    examples=varlen_examples(),
    check=check_varlen,
    check_data=partial(check_varlen_data, "attention_varlen_backward"),
)
