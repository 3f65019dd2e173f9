"""``acme::layer_norm``, which returns its statistics for the gradient, and ``acme::layer_norm_backward``."""

from __future__ import annotations

import math
from typing import Any

import torch

from registry import Arguments, Backward, Floor, InvalidArgumentError, Op, Problem, Value
from registry.problem import dtype_name

from .rounding import of_a_sum

Dims = dict[str, Value]
DTYPES = ("float64", "float32", "float16", "bfloat16")


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(x - mean) * rstd * weight + bias`` over the last dimension, and the mean and rstd in at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1)
    centred = wide - mean.unsqueeze(-1)
    rstd = torch.rsqrt(centred.square().mean(-1) + eps)
    y = centred * rstd.unsqueeze(-1) * weight
    return (y if bias is None else y + bias).to(x.dtype).contiguous(), mean, rstd


def backward_reference(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients by x ``[..., cols]``, weight and bias ``[cols]``, from the forward's statistics ``[...]``."""
    unit = (x - mean.unsqueeze(-1)) * rstd.unsqueeze(-1)
    gradient = grad_y.to(mean.dtype)
    weighted = gradient * weight
    centred = weighted - weighted.mean(-1, keepdim=True) - unit * (weighted * unit).mean(-1, keepdim=True)
    grad_x = (centred * rstd.unsqueeze(-1)).to(x.dtype).contiguous()
    rows = tuple(range(x.dim() - 1))
    return grad_x, (gradient * unit).sum(rows).to(weight.dtype), gradient.sum(rows).to(weight.dtype)


def dims_of(arguments: Arguments) -> Dims:
    """The dimensions of both ops: rows, cols, and the dtypes of x and of the weight, which may be wider."""
    x, weight = arguments.tensor("x"), arguments.tensor("weight")
    dtype, weight_dtype = dtype_name(x.dtype), dtype_name(weight.dtype)
    if not x.shape or weight.shape != x.shape[-1:]:
        raise InvalidArgumentError(
            f"{arguments.op}: x is {x.shape}, weight is {weight.shape}", hint="expected [..., cols] and [cols]"
        )
    if dtype not in DTYPES or weight_dtype not in {dtype, "float32"}:
        raise InvalidArgumentError(f"{arguments.op}: x is {dtype}, weight is {weight_dtype}")
    return {"rows": math.prod(x.shape[:-1]), "cols": x.shape[-1], "dtype": dtype, "weight_dtype": weight_dtype}


def forward_dims(arguments: Arguments) -> Dims:
    """The dimensions of the forward op: those of both, and whether there is a bias."""
    found = dims_of(arguments)
    _check_shape(arguments, "bias", arguments.tensor("weight").shape)
    return {**found, "bias": arguments.optional_tensor("bias") is not None}


def backward_dims(arguments: Arguments) -> Dims:
    """The dimensions of the backward op, whose other tensors belong to the rows of x."""
    found, shape = dims_of(arguments), arguments.tensor("x").shape
    for name, expected in (("grad_y", shape), ("mean", shape[:-1]), ("rstd", shape[:-1])):
        _check_shape(arguments, name, expected)
    return found


def _check_shape(arguments: Arguments, name: str, expected: tuple[int, ...]) -> None:
    """Raise InvalidArgumentError for a tensor of another shape, beyond whose end a kernel would read."""
    tensor = arguments.optional_tensor(name)
    if tensor is not None and tensor.shape != expected:
        raise InvalidArgumentError(f"{arguments.op}: {name} is {tensor.shape}", hint=f"expected {expected}")


def _drawn(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """x and weight."""
    shape, device = (problem.rows, problem.cols), generator.device
    x = torch.randn(shape, dtype=problem.torch_dtype, device=device, generator=generator)
    if kind == "shifted":
        x += 4.0
    elif kind == "spike_last":
        x[:, -1:] = 4.0 * math.sqrt(problem.cols)
    weight = torch.rand(shape[1:], dtype=getattr(torch, problem.weight_dtype), device=device, generator=generator)
    return x, weight + 0.5


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """Rows of noise; ``shifted`` shows a variance that was computed as a difference of large numbers."""
    x, weight = _drawn(problem, kind, generator)
    bias = torch.randn(weight.shape, dtype=weight.dtype, device=x.device, generator=generator)
    return x, weight, bias if problem.bias else None, 1e-5


def backward_inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    """A gradient, and what a forward pass would have saved."""
    x, weight = _drawn(problem, kind, generator)
    _, mean, rstd = reference(x, weight, None)
    grad_y = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    if kind == "spike_last":
        # of one sign: where the rows' large terms cancel, what is left says nothing of the rounding it may have
        grad_y[:, -1:].abs_().add_(0.5)
    return grad_y, x, weight, mean, rstd


def _floor(problem: Problem, tensors: int) -> Floor:
    elements = problem.rows * problem.cols
    return Floor(bytes=tensors * elements * problem.torch_dtype.itemsize + 8 * problem.rows, flop=8 * elements)


EXAMPLES = tuple(
    {"rows": rows, "cols": cols, "dtype": dtype, "weight_dtype": weight_dtype}
    for dtype, weight_dtype in (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
    for rows, cols in ((5, 33), (3, 257))
)
FORWARD = Op(
    name="acme::layer_norm",
    schema=(
        "acme::layer_norm(Tensor x, Tensor weight, Tensor? bias=None, float eps=1e-5)"
        " -> (Tensor y, Tensor mean, Tensor rstd)"
    ),
    version=1,
    reference=reference,
    problem=forward_dims,
    inputs=inputs,
    floor=lambda problem: _floor(problem, 2),
    tolerance=of_a_sum(8.0, lambda problem: problem.cols),
    static=frozenset({"cols", "dtype"}),
    choices={"bias": (False, True), "weight_dtype": DTYPES},
    dynamic=frozenset({"rows"}),
    kinds=("normal", "shifted", "spike_last"),
    examples=tuple({**dims, "bias": bool(place % 2)} for place, dims in enumerate(EXAMPLES)),
    backward=Backward(op="acme::layer_norm_backward", saved=("x", "weight", "mean", "rstd")),
)
BACKWARD = Op(
    name="acme::layer_norm_backward",
    schema=(
        "acme::layer_norm_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor mean, Tensor rstd)"
        " -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias)"
    ),
    version=1,
    reference=backward_reference,
    problem=backward_dims,
    inputs=backward_inputs,
    floor=lambda problem: _floor(problem, 3),
    tolerance=of_a_sum(8.0, lambda problem: problem.cols + problem.rows),
    static=frozenset({"cols", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"weight_dtype": DTYPES},
    kinds=("normal", "spike_last"),
    examples=EXAMPLES,
)
