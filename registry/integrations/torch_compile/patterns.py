"""Recognises ops in the graphs that Dynamo captures: calls of torch's functions, and RMS norms that are written out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.nn import functional

from ...contracts.forms.norms import default_eps

OPS = ("softmax", "rms_norm", "layer_norm", "linear", "attention")
"""The ops that are recognised."""


@dataclass(frozen=True)
class Match:
    """A call of ``op`` with the schema's first arguments, in order. ``node`` holds its output.

    ``swapped``: heads stand before the length, in the arguments and in the output, unlike in the op's schema.
    """

    op: str
    node: Node
    args: tuple[Any, ...]
    swapped: bool = False


class NotTheOp(Exception):  # noqa: N818  (a reason, not an error)
    """Why a call of torch's function is not a call of the op."""


def match(node: Node) -> Match | None:
    """The op that a node calls; None for another function. Raises NotTheOp for arguments that the op does not have."""
    if node.op == "call_method" and node.target == "softmax":
        return _softmax(node)
    if node.op != "call_function":
        return None
    known = _FUNCTIONS.get(node.target)
    return known(node) if known is not None else None


def _given(node: Node, names: Sequence[str], **defaults: Any) -> Mapping[str, Any]:
    """The arguments of a call by name. Raises NotTheOp for one that is not among ``names``."""
    given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    unknown = sorted(given.keys() - set(names))
    if unknown or len(node.args) > len(names):
        raise NotTheOp(f"it has an argument {', '.join(unknown) or node.args[-1]}")
    return given


def tensor_of(value: Any) -> torch.Tensor:
    """The fake tensor of a node. Raises NotTheOp for anything else."""
    found = value.meta.get("example_value") if isinstance(value, Node) else None
    if not isinstance(found, torch.Tensor):
        raise NotTheOp("an argument is no tensor")
    return found


def _softmax(node: Node) -> Match:
    functional_form = node.target is functional.softmax
    names = ("input", "dim", "_stacklevel", "dtype") if functional_form else ("input", "dim", "dtype")
    given = _given(node, names, dim=None, dtype=None)
    if not isinstance(given["dim"], int):
        raise NotTheOp("its dim is not given")
    if given["dtype"] not in {None, tensor_of(given["input"]).dtype}:
        raise NotTheOp(f"it converts to {given['dtype']}")
    return Match("softmax", node, (given["input"], given["dim"]))


def _rms_norm(node: Node) -> Match:
    given = _given(node, ("input", "normalized_shape", "weight", "eps"), weight=None, eps=None)
    eps = default_eps(tensor_of(given["input"]).dtype) if given["eps"] is None else given["eps"]
    if len(given["normalized_shape"]) != 1 or given["weight"] is None or not isinstance(eps, float):
        raise NotTheOp("the op has one dimension, a weight and an eps")
    return Match("rms_norm", node, (given["input"], given["weight"], eps))


def _layer_norm(node: Node) -> Match:
    names = ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    given = _given(node, names, weight=None, bias=None, eps=1e-5)
    if len(given["normalized_shape"]) != 1:
        raise NotTheOp("the op has one dimension")
    return Match("layer_norm", node, (given["input"], given["weight"], given["bias"], given["eps"]))


def _linear(node: Node) -> Match:
    given = _given(node, ("input", "weight", "bias"), bias=None)
    return Match("linear", node, (given["input"], given["weight"], given["bias"]))


def _attention(node: Node) -> Match:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = _given(node, names, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False)
    q, k, v = (given[name] for name in names[:3])
    if given["attn_mask"] is not None or given["dropout_p"] != 0.0:
        raise NotTheOp("it has a mask or dropout")
    if any(tensor_of(one).dim() != 4 for one in (q, k, v)):
        raise NotTheOp("its tensors are not [batch, heads, length, head_dim]")
    if tensor_of(q).shape[1] != tensor_of(k).shape[1] and not given["enable_gqa"]:
        raise NotTheOp("its numbers of heads differ without enable_gqa")
    if given["is_causal"] and tensor_of(q).shape[2] != tensor_of(k).shape[2]:
        raise NotTheOp("torch's causal mask counts from the first query, the op's from the last")
    return Match("attention", node, (q, k, v, None, given["is_causal"], given["scale"]), swapped=True)


# --- weight * (h * rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(dtype), where h = x.to(float32)


def _written_rms_norm(node: Node) -> Match | None:
    for weight, other in (node.args, node.args[::-1]):
        scaled = _undone_cast(other)
        if not isinstance(weight, Node) or not isinstance(scaled, Node) or scaled.target not in _PRODUCTS:
            continue
        for h, factor in (scaled.args, scaled.args[::-1]):
            eps = _eps_of(factor, h)
            if eps is not None:
                x = _undone_cast(h)
                return _checked_rms_norm(node, x, weight, h, eps)
    return None


def _checked_rms_norm(node: Node, x: Any, weight: Node, h: Any, eps: float) -> Match:
    if tensor_of(h).dtype != torch.float32:
        raise NotTheOp("its sum is not in float32, as the op's is")
    if tensor_of(weight).dim() != 1 or tensor_of(weight).dtype != tensor_of(x).dtype:
        raise NotTheOp("its weight is not one dimension of the input's dtype")
    return Match("rms_norm", node, (x, weight, eps))


def _undone_cast(value: Any) -> Any:
    """The argument of a conversion to another dtype; anything else as it is."""
    if isinstance(value, Node) and value.op == "call_method" and value.target in {"to", "type_as", "float"}:
        dtypes = [one for one in (*value.args[1:], *value.kwargs.values()) if not isinstance(one, torch.dtype | Node)]
        return value.args[0] if not dtypes else value
    return value


def _eps_of(factor: Any, h: Any) -> float | None:
    """eps, if ``factor`` is ``rsqrt(mean(h ** 2, -1, keepdim=True) + eps)``; else None."""
    match factor:
        case Node(target=torch.rsqrt, args=(Node(target=operator.add, args=(Node() as mean, float() as eps)),)):
            return eps if _is_mean_square(mean, h) else None
        case Node(
            op="call_method", target="rsqrt", args=(Node(target=operator.add, args=(Node() as mean, float() as eps)),)
        ):
            return eps if _is_mean_square(mean, h) else None
    return None


def _is_mean_square(mean: Node, h: Any) -> bool:
    given = {**dict(zip(("input", "dim", "keepdim"), mean.args, strict=False)), **mean.kwargs}
    square, dim = given.get("input"), given.get("dim")
    if mean.target not in {"mean", torch.mean} or given.get("keepdim") is not True or given.keys() - _MEAN:
        return False
    if (
        dim not in (-1, (-1,), [-1])
        or not isinstance(square, Node)
        or square.target not in {"pow", torch.pow, *_POWERS}
    ):
        return False
    return square.args == (h, 2)


_MEAN = {"input", "dim", "keepdim"}
_POWERS = frozenset({operator.pow})
_PRODUCTS = frozenset({operator.mul, torch.mul})

_FUNCTIONS: Mapping[Any, Callable[[Node], Match | None]] = {
    torch.softmax: _softmax,
    functional.softmax: _softmax,
    torch.rms_norm: _rms_norm,
    functional.rms_norm: _rms_norm,
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    functional.linear: _linear,
    functional.scaled_dot_product_attention: _attention,
    operator.mul: _written_rms_norm,
    torch.mul: _written_rms_norm,
}
