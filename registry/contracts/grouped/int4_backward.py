"""The gradient of grouped_gemm_int4 by its rows, for training adapters beside frozen experts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ...contract import Op, RowMajor
from ...errors import InvalidArgumentError
from ...packed import dequantized
from ...problem import Arguments, Problem, Value
from ..checks import FLOATS, float_tensor, shape_text
from ..segments import spans
from .int4 import BITS, GROUPED_GEMM_INT4, TOLERANCE, check, drawn, floor, weight_dims
from .routing import check_offsets_data


def grouped_gemm_int4_backward_reference(
    grad_y: torch.Tensor,
    qweight: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    offsets: torch.Tensor,
    bits: int,
    group_size: int,
    k: int,
) -> torch.Tensor:
    """``grad_y[r] @ W[i].T`` for the rows r of expert i, ``[m, N]`` to ``[m, K]``; 0 for other rows.

    Weights and products in at least float32, rounded once.
    """
    accumulator = torch.promote_types(grad_y.dtype, torch.float32)
    rows, found = grad_y.shape[0], spans(offsets, grad_y.shape[0])
    wide = grad_y.to(accumulator)
    parts = [wide.new_zeros(found[0][0], k)]
    for expert, (begin, end) in enumerate(found):
        if end > begin:
            zero = None if zeros is None else zeros[expert]
            weight = dequantized(qweight[expert], scales[expert], zero, group_size, accumulator, bits=bits, k=k)
            parts.append(wide[begin:end] @ weight.T)
    parts.append(wide.new_zeros(rows - found[-1][1], k))
    return torch.cat(parts).to(grad_y.dtype)


def _problem(arguments: Arguments) -> Mapping[str, Value]:
    grad_y, dims = float_tensor(arguments, "grad_y", FLOATS), weight_dims(arguments, "grad_y")
    if len(grad_y.shape) != 2 or grad_y.shape[1] != dims["n"]:
        raise InvalidArgumentError(
            f"{arguments.op}: grad_y has shape {shape_text(grad_y.shape)} but weights have N={dims['n']}",
            hint=f"expected [m, {dims['n']}]",
        )
    return {"m": grad_y.shape[0], **dims}


def _inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    return *drawn(problem, kind, generator, problem.n), BITS, problem.group_size, problem.k


GROUPED_GEMM_INT4_BACKWARD = Op(
    name="grouped_gemm_int4_backward",
    schema="grouped_gemm_int4_backward(Tensor grad_y, Tensor qweight, Tensor scales, Tensor? zeros, Tensor offsets, "
    "int bits, int group_size, int k) -> Tensor grad_x",
    version=1,
    reference=grouped_gemm_int4_backward_reference,
    fake=RowMajor(lambda grad_y, *rest: [((grad_y.shape[0], rest[-1]), grad_y.dtype)]),
    problem=_problem,
    inputs=_inputs,
    floor=floor,
    tolerance=TOLERANCE,
    static=frozenset({"n", "k", "group_size", "experts", "dtype"}),
    dynamic=GROUPED_GEMM_INT4.dynamic,
    choices=GROUPED_GEMM_INT4.choices,
    distributions=GROUPED_GEMM_INT4.distributions,
    kinds=GROUPED_GEMM_INT4.kinds,
    examples=GROUPED_GEMM_INT4.examples,
    check=check,
    check_data=partial(check_offsets_data, "grouped_gemm_int4_backward"),
    weights=GROUPED_GEMM_INT4.weights,
    independent=GROUPED_GEMM_INT4.independent,
)
