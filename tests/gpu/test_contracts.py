"""On a GPU: torch's own ops and the references are accepted on every kind of inputs, also where tensors are large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.contracts import BOX, GEMM_INT4
from registry.correctness import numerics
from registry.packed import dequantized
from registry.problem import Value

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

OPS = {op.name: op for op in BOX}


def gemm_dequantised(a: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, *rest: Any) -> torch.Tensor:
    weight: torch.Tensor = dequantized(qweight, scales, rest[0], rest[2], a.dtype)
    return a @ weight


def rms_norm_gradients(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, *_: bool) -> Any:
    """What torch's autograd makes of its own rms_norm."""
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
    return torch.autograd.grad(y, (x, weight), grad_y)


def linear_gradients(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any, *_: bool) -> Any:
    """What torch's autograd makes of its own linear layer."""
    given = [one.clone().requires_grad_() for one in (x, weight, bias)]
    return torch.autograd.grad(torch.nn.functional.linear(*given), given, grad_y)


NATIVE: dict[str, Callable[..., Any]] = {
    "vector_add": torch.add,
    "square": torch.square,
    "gelu": lambda x, how: torch.nn.functional.gelu(x, approximate=how),
    "softmax": torch.softmax,
    "rms_norm": lambda x, weight, eps: torch.nn.functional.rms_norm(x, weight.shape, weight, eps),
    "gemm_int4": gemm_dequantised,
    "square_backward": lambda grad_y, x: grad_y * x * 2,
    "gelu_backward": lambda grad_y, x, how: torch.ops.aten.gelu_backward(grad_y, x, approximate=how),
    "softmax_backward": lambda grad_y, y, dim: torch.ops.aten._softmax_backward_data(grad_y, y, dim, y.dtype),
    "rms_norm_backward": rms_norm_gradients,
    "linear": torch.nn.functional.linear,
    "linear_backward": linear_gradients,
}
SIZES: list[tuple[str, dict[str, Value]]] = [
    ("vector_add", {"n": 2**26 + 1}),
    ("square", {"n": 2**26 + 1}),
    ("gelu", {"n": 2**24 + 1, "approximate": "tanh"}),
    ("gelu", {"n": 2**24 + 1, "approximate": "none"}),
    ("softmax", {"rows": 1, "cols": 128_256}),
    ("softmax", {"rows": 1001, "cols": 151_936}),
    ("softmax", {"rows": 4097, "cols": 1000}),
    ("rms_norm", {"rows": 4097, "cols": 8192}),
    ("gemm_int4", {"m": 1, "n": 4096, "k": 14_336, "group_size": 128, "bits": 4, "symmetric": False}),
    ("gemm_int4", {"m": 2048, "n": 28_672, "k": 4096, "group_size": 4096, "bits": 4, "symmetric": False}),
    ("gemm_int4", {"m": 65, "n": 6144, "k": 4096, "group_size": 32, "bits": 4, "symmetric": True}),
    ("linear", {"m": 1, "n": 4096, "k": 14_336, "bias": True}),
    ("linear", {"m": 2048, "n": 28_672, "k": 4096, "bias": False}),
    ("linear_backward", {"m": 2048, "n": 6144, "k": 4096, "bias": True}),
    ("square_backward", {"n": 2**26 + 1}),
    ("gelu_backward", {"n": 2**24 + 1, "approximate": "tanh"}),
    ("gelu_backward", {"n": 2**24 + 1, "approximate": "none"}),
    ("softmax_backward", {"rows": 1, "cols": 128_256}),
    ("softmax_backward", {"rows": 4097, "cols": 4096}),
    ("softmax_backward", {"rows": 300_001, "cols": 7}),
    ("rms_norm_backward", {"rows": 4097, "cols": 8192}),
    ("rms_norm_backward", {"rows": 131_072, "cols": 128}),
    ("rms_norm_backward", {"rows": 300_001, "cols": 7}),
]


# autograd's thread has no CUDA context before its first product
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("name", "dims"), SIZES, ids=str)
def test_torchs_own_op_is_accepted_on_every_kind(name: str, dims: dict[str, Value], dtype: str) -> None:
    op = OPS[name]
    if op is GEMM_INT4 and dtype == "float32":
        pytest.skip("activations are half precision")
    problem = op.problem_of({**dims, "dtype": dtype})
    for kind in op.kinds:
        values = op.bind(op.inputs(problem, kind, torch.Generator("cuda").manual_seed(3)), {})
        reference = numerics.reference64(op, values)
        own = numerics.own_error(op, problem, values, reference)
        # torch rounds the products of a softmax's gradient to half before it sums them
        rounds = name == "softmax_backward" and dtype != "float32"
        for compute in (op.reference,) if rounds else (op.reference, NATIVE[name]):
            found = numerics.compare(op, problem, compute(*values), reference, own)
            assert found.ok, f"{kind} inputs: {found.message}"
