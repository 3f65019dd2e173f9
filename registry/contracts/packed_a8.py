"""int8 or float8 activations times a packed weight: W4A8 and W8A8, as the field calls them.

``quantize_per_token`` makes the activations and their scales. For inference: there is no backward op.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ..contract import Floor, Op, Packed, RowMajor, Tolerance
from ..errors import InvalidArgumentError
from ..packed import PackedWeight
from ..problem import Arguments, Problem, TensorSpec, Value, dtype_name
from .checks import shape_text
from .packed_gemm import (
    PARTS,
    WEIGHT,
    ZEROS,
    Weight,
    check_packed,
    packed_examples,
    packed_flatten,
    packed_scale,
    weight_bytes,
    weight_dims,
)
from .packed_gemm_inputs import KINDS, Format, packed_inputs
from .quantize_per_token import LARGEST, quantize_per_token_reference
from .rounding import underflow, units


def packed_a8_reference(a: torch.Tensor, scale_a: torch.Tensor, *rest: Any) -> torch.Tensor:
    """``(a * scale_a) @ W + bias``: levels ``[..., K]`` and scales ``[..., 1]`` or ``[1]`` to ``[..., N]``.

    ``rest`` are the weight's parts and the bias or None. Products in at least float32, rounded once to the dtype of
    the weight's scales with the bias added.
    """
    weight, bias = Weight(*rest[:-1]), rest[-1]
    accumulator = torch.promote_types(weight.scales.dtype, torch.float32)
    wide = a.to(accumulator) * scale_a.to(accumulator)
    product = torch.cat([wide @ piece for piece in weight.pieces(accumulator)], dim=-1)
    if bias is not None:
        product = product + bias.to(accumulator)
    return product.to(weight.scales.dtype).contiguous()


def packed_a8_op(name: str, bits: int) -> Op:
    """The op ``name(a, scale_a, w, bias=None)`` for weights of ``bits`` bits.

    Dimensions: m (dynamic), n, k, group_size, dtype (of the weight's scales, the bias and the result); choices:
    activation ("int8", "float8_e4m3fn"), zeros ("none", "integer", "float"), static (one scale for all tokens), bias.
    """
    form = Format(bits, None)
    flags: tuple[Value, ...] = (False, True)
    choices: dict[str, tuple[Value, ...]] = {
        "activation": tuple(LARGEST), "zeros": ZEROS, "act_order": (False,), "static": flags, "bias": flags,
    }  # fmt: skip
    return Op(
        name=name,
        schema=f"{name}(Tensor a, Tensor scale_a, {WEIGHT}, Tensor? bias=None) -> Tensor y",
        version=1,
        reference=packed_a8_reference,
        fake=RowMajor(lambda a, _, qweight, scales, *__: [((*a.shape[:-1], qweight.shape[1]), scales.dtype)]),
        problem=partial(_problem, form),
        inputs=partial(_inputs, form),
        floor=partial(_floor, form),
        tolerance=Tolerance(rtol=units(float32=2.0, half=1.5), atol=underflow(), scale=packed_scale),
        static=frozenset({"n", "k", "group_size", "dtype"}),
        dynamic=frozenset({"m"}),
        choices=choices,
        kinds=KINDS,
        examples=tuple(
            {**dims, "activation": tuple(LARGEST)[place % 2], "static": place % 4 == 2}
            for place, dims in enumerate(packed_examples(choices, bias=True))
        ),
        check=partial(check_packed, form),
        flatten=partial(packed_flatten, form, ("a", "scale_a"), name),
        packed=Packed("w", PackedWeight, PARTS),
        weights=frozenset({"qweight", "scales", "zeros", "g_idx"}),
        independent=frozenset({"a", "qweight"}),
    )


def _problem(form: Format, arguments: Arguments) -> Mapping[str, Value]:
    op, a = arguments.op, arguments.tensor("a")
    if dtype_name(a.dtype) not in LARGEST:
        raise InvalidArgumentError(
            f"{op}: a is {dtype_name(a.dtype)}, expected {' or '.join(LARGEST)}",
            hint='a, scale_a = registry.call("quantize_per_token", x, "int8")',
        )
    dims = weight_dims(form, arguments)
    if dims["act_order"]:
        raise InvalidArgumentError(f"{op}: w has act-order (g_idx)", hint="its op with whole activations takes it")
    if not a.shape or a.shape[-1] != dims["k"]:
        raise InvalidArgumentError(
            f"{op}: a has shape {shape_text(a.shape)} but w has K={dims['k']}",
            hint=f"expected a of shape [..., {dims['k']}]",
        )
    static = _is_static(op, a, arguments.tensor("scale_a"))
    bias = arguments.optional_tensor("bias")
    if bias is not None and (dtype_name(bias.dtype), bias.shape) != (dims["dtype"], (dims["n"],)):
        raise InvalidArgumentError(
            f"{op}: bias is {dtype_name(bias.dtype)} of shape {shape_text(bias.shape)}",
            hint=f"expected {dims['dtype']} of shape [{dims['n']}], as the scales of w",
        )
    known: dict[str, Value] = {"m": math.prod(a.shape[:-1]), "activation": dtype_name(a.dtype), "static": static}
    return {**known, **dims, "bias": bias is not None}


def _is_static(op: str, a: TensorSpec, scale: TensorSpec) -> bool:
    """True if one scale serves all tokens; ``[..., 1]`` is one per token, also for a single token."""
    rows = (*a.shape[:-1], 1)
    if scale.dtype != torch.float32 or scale.shape not in (rows, (1,), ()):
        raise InvalidArgumentError(
            f"{op}: scale_a is {dtype_name(scale.dtype)} of shape {shape_text(scale.shape)}",
            hint=f"expected float32 of shape [{', '.join(map(str, rows))}], one a token, or [1]",
        )
    return len(scale.shape) < 2


def _inputs(form: Format, problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    x, *weight = packed_inputs(form, problem, kind, generator)
    most = LARGEST[problem.activation]
    # the largest activations exceed the range of a static scale
    static = torch.full((1,), 3.0 / most, device=x.device) if problem.static else None
    a, scale_a = quantize_per_token_reference(x, str(problem.activation), 0, static)
    return a, scale_a, *weight


def _floor(form: Format, problem: Problem) -> Floor:
    m, n, k, itemsize = problem.m, problem.n, problem.k, problem.torch_dtype.itemsize
    moved = m * k + 4 * (1 if problem.static else m) + m * n * itemsize + (n * itemsize if problem.bias else 0)
    return Floor(bytes=moved + weight_bytes(form.bits, problem), flop=2 * m * n * k)


GEMM_W4A8 = packed_a8_op("gemm_w4a8", 4)
GEMM_W8A8 = packed_a8_op("gemm_w8a8", 8)
