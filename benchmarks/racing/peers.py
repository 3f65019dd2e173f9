"""Rivals that a user could run instead: other projects' implementations of the ops, on the op's own arguments.

Each is installed by hand (`pip install liger-kernel flag-gems gemlite humming-kernels`); one that is missing is
reported as missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from registry import PackedWeight, Problem
from registry.packed import LAYOUT

from .device_timing import Call

Maker = Callable[[Problem, tuple[Any, ...]], Call]


def calls(problem: Problem, values: tuple[Any, ...]) -> Iterator[tuple[str, Call | str]]:
    """(name, callable on the op's values) of every peer of the op; a text where it is not usable, with the reason."""
    for name, maker in _PEERS.get(problem.op, {}).items():
        try:
            yield name, maker(problem, values)
        except Exception as fault:  # a peer that does not import or refuses the shape is a row of the table
            yield name, f"{type(fault).__name__}: {fault}".splitlines()[0][:160]


def _max_autotune(function: Callable[..., Any]) -> Call:
    torch._dynamo.reset()
    compiled: Call = torch.compile(function, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
    return compiled


def _compiled_softmax(*_: object) -> Call:
    compiled = _max_autotune(lambda x: torch.softmax(x, -1))
    return lambda x, _dim: compiled(x)


def _compiled_norm(_: Problem, values: tuple[Any, ...]) -> Call:
    eps = values[2]
    compiled = _max_autotune(lambda x, weight: torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps))
    return lambda x, weight, _eps: compiled(x, weight)


def _liger_softmax(*_: object) -> Call:
    forward = importlib.import_module("liger_kernel.ops.softmax")._softmax_forward
    return lambda x, _dim: forward(x)[0]


def _liger_norm(*_: object) -> Call:
    apply: Call = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction.apply
    return apply


def _liger_layer_norm(_: Problem, values: tuple[Any, ...]) -> Call:
    """Liger's layer norm, which needs weight and bias: it gets ones and zeros where the op has none."""
    apply: Call = importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction.apply
    x = values[0]
    ones, zeros = (make(x.shape[-1], dtype=x.dtype, device=x.device) for make in (torch.ones, torch.zeros))
    return lambda x, weight, bias, eps: apply(
        x, ones if weight is None else weight, zeros if bias is None else bias, eps
    )


def _liger_add_norm(*_: object) -> Call:
    """Liger's fused add and norm: it writes sum and norm to new tensors, the op in place: as many bytes."""
    module = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
    forward = module.fused_add_rms_norm_forward
    return lambda x, residual, weight, eps, *_: forward(x, residual, weight, eps, 0.0, "llama")[:2]


def _liger_silu(*_: object) -> Call:
    forward = importlib.import_module("liger_kernel.ops.swiglu").swiglu_fused_gate_up_forward
    return lambda x: forward(x)[0]


def _liger_gelu(problem: Problem, _: tuple[Any, ...]) -> Call:
    """Liger's GeGLU (tanh only), which takes the halves as two tensors: they are made before anything is timed."""
    if problem.dims["approximate"] != "tanh":
        raise ValueError("Liger's gelu is the approximation by tanh alone")
    forward = importlib.import_module("liger_kernel.ops.geglu").geglu_forward
    halves: dict[int, tuple[torch.Tensor, ...]] = {}

    def call(x: torch.Tensor, *_: object) -> Any:
        if x.data_ptr() not in halves:
            halves[x.data_ptr()] = tuple(half.contiguous() for half in x.chunk(2, -1))
        return forward(*halves[x.data_ptr()])[-1]

    return call


def _sdpa(backend: str) -> Maker:
    """torch's attention by one of its backends, of heads before rows; it returns no log-sum-exp."""

    def maker(problem: Problem, _: tuple[Any, ...]) -> Call:
        dims = problem.dims
        if dims["softcap"] or dims["span"] is not False or (dims["causal"] and dims["q_len"] != dims["kv_len"]):
            raise ValueError("torch's attention has no cap, no window, and causal rows of as many queries as keys")
        chosen = [getattr(torch.nn.attention.SDPBackend, backend)]

        def call(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool, scale: Any, *_: Any
        ) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            with torch.nn.attention.sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
                )

        return call

    return maker


def _gems_softmax(*_: object) -> Call:
    softmax: Call = importlib.import_module("flag_gems").ops.softmax
    return softmax


def _gems_norm(*_: object) -> Call:
    rms_norm = importlib.import_module("flag_gems").ops.rms_norm
    return lambda x, weight, eps: rms_norm(x, (x.shape[-1],), weight, eps)


def _gemlite(problem: Problem, values: tuple[Any, ...]) -> Call:
    """GemLite's layer over the same quantised weight; its own autotuning happens at the first call."""
    core = importlib.import_module("gemlite.core")
    a, qweight, scales, zeros, bits, group_size, k, _ = values
    dtype = core.TORCH_TO_DTYPE[a.dtype]
    layer = core.GemLiteLinearTriton(
        W_nbits=bits,
        group_size=group_size,
        in_features=k,
        out_features=problem.n,
        input_dtype=dtype,
        output_dtype=dtype,
    )
    weight = PackedWeight(qweight, scales, zeros, bits, group_size, (problem.n, k), LAYOUT)
    layer.pack(_integers(weight), scales.t().contiguous(), zeros.t().to(a.dtype).contiguous())
    return lambda a, *_: layer.forward(a)


def _humming(problem: Problem, values: tuple[Any, ...]) -> Call:
    """Humming's layer with its own heuristics, of what the quantised weight stands for; it compiles by NVRTC."""
    layer_of = importlib.import_module("humming.layer").HummingLayer
    a, *_, bits, group_size, k, _layout = values
    config = {"dtype": f"int{bits}", "group_size": group_size, "has_zero_point": not problem.dims["symmetric"]}

    def made(weight: PackedWeight) -> Any:
        with a.device:
            layer = layer_of(shape_n=problem.n, shape_k=k, weight_config=config, torch_dtype=a.dtype)
        layer.load_from_unquantized(weight.dequantize().to(a.dtype))
        layer.transform()
        return layer

    return _by_weight(problem, made, lambda layer, a: layer(a))


def _dense(problem: Problem, values: tuple[Any, ...]) -> Call:
    """The product with the weight in the activations' dtype, by torch: what 4 bits must beat to be worth having."""
    dtype = values[0].dtype
    return _by_weight(
        problem,
        lambda weight: weight.dequantize().to(dtype),
        lambda dense, a: torch.nn.functional.linear(a, dense),
    )


def _by_weight(problem: Problem, make: Callable[[PackedWeight], Any], run: Callable[[Any, torch.Tensor], Any]) -> Call:
    """``run`` on what ``make`` has made of a call's weight, once for each copy of it: one for all would stay in L2."""
    made: dict[int, Any] = {}

    def call(a: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, zeros: Any, *rest: Any) -> Any:
        if qweight.data_ptr() not in made:
            bits, group_size, k, _ = rest
            made[qweight.data_ptr()] = make(
                PackedWeight(qweight, scales, zeros, bits, group_size, (problem.n, k), LAYOUT)
            )
        return run(made[qweight.data_ptr()], a)

    return call


def _integers(weight: PackedWeight) -> torch.Tensor:
    """``[N, K]`` uint8, one element a number."""
    words = weight.qweight
    nibbles = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], dim=1)
    return nibbles.reshape(-1, words.shape[1]).t().contiguous().to(torch.uint8)


_PEERS: Mapping[str, Mapping[str, Maker]] = {
    "softmax": {"torch.compile max-autotune": _compiled_softmax, "Liger": _liger_softmax, "FlagGems": _gems_softmax},
    "rms_norm": {"torch.compile max-autotune": _compiled_norm, "Liger": _liger_norm, "FlagGems": _gems_norm},
    "layer_norm": {"Liger": _liger_layer_norm},
    "fused_add_rms_norm": {"Liger": _liger_add_norm},
    "silu_and_mul": {"Liger": _liger_silu},
    "gelu_and_mul": {"Liger": _liger_gelu},
    "attention": {
        "torch flash": _sdpa("FLASH_ATTENTION"),
        "torch cuDNN": _sdpa("CUDNN_ATTENTION"),
        "torch efficient": _sdpa("EFFICIENT_ATTENTION"),
    },
    "gemm_int4": {"dense": _dense, "GemLite": _gemlite, "Humming": _humming},
}
