"""A pytest plugin by which FlagGems' own tests run the registry's ops in place of FlagGems' kernels.

It is loaded by ``-p benchmarks.conformance.flaggems_shim`` in a checkout of FlagGems. The package ``flag_gems`` is then
this file's: within ``use_gems()`` functions of torch that the registry has an op for become calls of it, and FlagGems'
own functions do, too. Its comparisons are its own file's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from .counted_calls import ours
from .torch_calls import CALLS

FILES = (
    "add", "apply_rotary_pos_emb", "cross_entropy_loss", "embedding", "fused_add_rms_norm", "gelu", "gelu_and_mul",
    "layer_norm", "linear", "linear_backward", "mm", "reshape_and_cache_flash", "rms_norm",
    "scaled_dot_product_attention", "silu", "silu_and_mul", "skip_layer_norm", "softmax", "square",
)  # fmt: skip
"""The files of tests whose functions are replaced, without ``test_``."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Put the package in its place, before the tests are imported."""
    source = Path(os.environ["CONFORMANCE_FLAGGEMS"])
    able = types.SimpleNamespace(support_fp64=True, support_bf16=True, support_int64=True, vendor_name="nvidia")
    runtime = _module("flag_gems.runtime", device=able, torch_device_fn=getattr(torch, DEVICE))
    random_utils = _module("flag_gems.utils.random_utils", set_philox_state=lambda *_: None)
    utils = _module("flag_gems.utils", random_utils=random_utils)
    package = _module("flag_gems", device=DEVICE, vendor_name="nvidia", runtime=runtime, utils=utils, **FUNCTIONS)
    package.use_gems = ReplacingMode  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("flag_gems.testing", source / "src/flag_gems/testing/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    testing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(testing)
    package.testing = testing  # type: ignore[attr-defined]


def _module(name: str, **values: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(values)
    sys.modules[name] = module
    return module


class ReplacingMode(TorchFunctionMode):
    """Calls of torch's functions in ``REPLACED`` become calls of ops; all others are torch's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        replaced = REPLACED.get(func)
        if replaced is None or kwargs.get("out") is not None or kwargs.pop("inplace", False):
            return func(*args, **kwargs)
        return replaced(*args, **kwargs)


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    return ours("layer_norm", x, weight, bias, eps, normalized_shape=tuple(shape))


def _softmax(x: Any, dim: int, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return ours("softmax", x, dim, **({} if dtype is None else {"dtype": dtype}))


def _gelu_backward(grad_y: Any, x: Any, *, approximate: str = "none") -> Any:
    return ours("gelu_backward", grad_y, x, approximate)


def _silu_backward(grad_y: torch.Tensor, x: torch.Tensor) -> Any:
    grad, wide = (one if x.dim() else one[None] for one in (grad_y, x))
    halves = ours("silu_and_mul_backward", grad, torch.cat((wide, torch.ones_like(wide)), -1))
    return halves.chunk(2, -1)[0].reshape(x.shape)


def _linear_backward(x: Any, grad_y: Any, weight: Any, mask: Any) -> Any:
    grads = ours("linear_backward", grad_y, x, weight, None if not mask[2] else weight[:, 0], *mask)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, mask, strict=True))


def _embedding(
    indices: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    del norm_type
    more = {"max_norm": max_norm, "scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    return ours("embedding", indices, weight, padding_idx, **{name: value for name, value in more.items() if value})


def _embedding_backward(
    grad: torch.Tensor, indices: Any, rows: int, padding_idx: int, scale_grad_by_freq: bool, sparse: bool = False
) -> Any:
    more = {"scale_grad_by_freq": scale_grad_by_freq, "sparse": sparse}
    # of the weight the op reads the shape alone
    given = grad, indices, grad.new_empty(rows, grad.shape[-1]), padding_idx if padding_idx >= 0 else None
    return ours("embedding_backward", *given, **{name: value for name, value in more.items() if value})


REPLACED: Mapping[Any, Callable[..., Any]] = {
    torch.add: CALLS["add"],
    torch.mm: CALLS["mm"],
    torch.square: CALLS["square"],
    torch.layer_norm: _layer_norm,
    torch.nn.functional.embedding: _embedding,
    torch.nn.functional.gelu: CALLS["nn.functional.gelu"],
    torch.nn.functional.linear: CALLS["nn.functional.linear"],
    torch.nn.functional.scaled_dot_product_attention: CALLS["nn.functional.scaled_dot_product_attention"],
    torch.nn.functional.silu: CALLS["nn.functional.silu"],
    torch.nn.functional.softmax: _softmax,
    torch.ops.aten._softmax_backward_data: CALLS["_softmax_backward_data"],
    torch.ops.aten.embedding_backward: _embedding_backward,
    torch.ops.aten.embedding_dense_backward: _embedding_backward,
    torch.ops.aten.gelu_backward: _gelu_backward,
    torch.ops.aten.linear_backward: _linear_backward,
    torch.ops.aten.silu_backward: _silu_backward,
}
"""torch's function -> the call of the registry that takes its place."""


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    return ours("rms_norm", x, weight, eps, normalized_shape=tuple(shape))


def _fused_add_rms_norm(x: Any, residual: Any, shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    del shape
    ours("fused_add_rms_norm", x, residual, weight, eps)
    return x, residual


def _skip_layer_norm(x: Any, residual: Any, shape: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    # the sum is not rounded before its norm, as in FlagGems' kernel
    total = ours("vector_add", x.float(), residual.float())
    return _layer_norm(total, shape, weight.float(), bias.float(), eps).to(x.dtype)


def _silu_and_mul_out(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_silu_and_mul(gate, up))


def _cross_entropy(logits: Any, target: Any, **options: Any) -> Any:
    return ours("cross_entropy", logits, target, **options)[0]


def _silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> Any:
    return _gated("silu_and_mul", gate, up)


def _gelu_and_mul(gate: torch.Tensor, up: torch.Tensor, approximate: str = "none") -> Any:
    return _gated("gelu_and_mul", gate, up, approximate)


def _gated(op: str, gate: torch.Tensor, up: torch.Tensor, *options: str) -> Any:
    halves = [one if one.dim() else one[None] for one in (gate, up)]
    return ours(op, torch.cat(halves, -1), *options).view(gate.shape)


def _rotary(q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, rotary_interleaved: bool = False) -> Any:
    if position_ids is None:
        position_ids = torch.arange(q.shape[1], device=q.device).expand(q.shape[:2])
    turned = q.clone(), k.clone()
    table = torch.cat((cos, sin), -1).float()  # then no implementation rounds products
    ours("rotary_embedding", position_ids, *turned, q.shape[-1], table, not rotary_interleaved)
    return turned


def _append(key: Any, value: Any, keys: Any, values: Any, slots: Any, kind: str, k_scale: Any, v_scale: Any) -> None:
    scales = () if kind == "auto" else (k_scale, v_scale)
    ours("kv_cache_append", key, value, keys, values, slots, *scales)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "apply_rotary_pos_emb": _rotary,
    "cross_entropy_loss": _cross_entropy,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "gelu_and_mul": _gelu_and_mul,
    "reshape_and_cache_flash": _append,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": CALLS["nn.functional.scaled_dot_product_attention"],
    "silu_and_mul": _silu_and_mul,
    "silu_and_mul_out": _silu_and_mul_out,
    "skip_layer_norm": _skip_layer_norm,
}
"""Name of FlagGems' function -> the call of the registry that takes its place."""
