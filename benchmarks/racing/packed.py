"""Rivals of products with packed weights: the product with the dense weight by torch, and Humming's layer.

Each copy of a call's weight has a layer of its own: one for all would stay in L2.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

import registry
from registry import PackedWeight, Problem, Sparse24Weight

from .device_timing import Call

_INPUTS = {"int8": "int8", "float8_e4m3fn": "float8e4m3"}
"""Humming's names of the dtypes of activations."""


def dense(problem: Problem, _values: tuple[Any, ...]) -> Call:
    """The product in the weight's dtype, of rounded activations in it, too: what packing must beat."""

    def made(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = weight_of(problem, given)
        a, scale = given["a"], given.get("scale_a")
        return weight.dequantize(), None if scale is None else (a.float() * scale).to(weight.dtype)

    def run(layer: tuple[torch.Tensor, torch.Tensor | None], given: Mapping[str, Any]) -> torch.Tensor:
        weight, whole = layer
        return torch.nn.functional.linear(given["a"] if whole is None else whole, weight, given.get("bias"))

    return _by_weight(problem, "qweight", made, run)


def humming(problem: Problem, _values: tuple[Any, ...]) -> Call:
    """Humming's layer with its own heuristics, of what the packed weight stands for; it compiles by NVRTC.

    Activations in 8 bits are given to it rounded, with their scales, as to the op.
    """
    configs = configs_of(problem)
    importlib.import_module("humming.layer")

    def made(given: Mapping[str, Any]) -> Any:
        return humming_layer(weight_of(problem, given).dequantize(), configs)

    def run(layer: Any, given: Mapping[str, Any]) -> Any:
        scale = given.get("scale_a")
        return layer(given["a"]) if scale is None else layer(given["a"], input_scale=scale.view(-1, 1))

    return _by_weight(problem, "qweight", made, run)


def humming_layer(weight: torch.Tensor, configs: Mapping[str, Mapping[str, Any]]) -> Any:
    """Humming's layer of a dense weight ``[N, K]`` that it rounds, for activations ``[rows, K]`` in its dtype."""
    layer_of = importlib.import_module("humming.layer").HummingLayer
    n, k = weight.shape
    given = {name: dict(config) for name, config in configs.items()}  # the layer writes into them
    with weight.device:
        layer = layer_of(shape_n=n, shape_k=k, torch_dtype=weight.dtype, **given)
    layer.load_from_unquantized(weight)
    layer.transform()
    return layer


def configs_of(problem: Problem) -> dict[str, dict[str, Any]]:
    """Humming's configs of a problem's weight and activations. Raises ValueError for what Humming has not."""
    dims = problem.dims
    if dims.get("act_order") or dims.get("bias"):
        raise ValueError("act-order or a bias, of which Humming's layers have no part here")
    zeros = dims["zeros"] if "zeros" in dims else ("none" if dims["symmetric"] else "integer")
    bits = {"gemm_w4a8": 4, "gemm_w8a8": 8, "gemm_w4a16": 4}.get(problem.op) or int(problem.op.removeprefix("gemm_int"))
    weight: dict[str, Any] = {"dtype": f"int{bits}", "group_size": problem.group_size % problem.k}
    # without zero points one bit stands for plus and minus half a scale: 0.5 is a zero point that is no integer
    weight["has_zero_point"] = zeros != "none" or bits == 1
    weight["is_fp_zero_point"] = zeros == "float" or bits == 1
    found = {"weight_config": weight}
    if "activation" in dims:
        if zeros != "none" or dims["static"]:
            raise ValueError("zero points or one scale for all tokens beside activations in 8 bits")
        found["input_config"] = {"dtype": _INPUTS[problem.activation], "quant_mode": "dynamic_token"}
    return found


def dense_of_sparse(problem: Problem, _values: tuple[Any, ...]) -> Call:
    """The product with the dense weight that a 2:4 sparse one stands for."""
    return _by_weight(
        problem,
        "values",
        lambda given: Sparse24Weight(given["values"], given["meta"]).dense(),
        lambda weight, given: torch.nn.functional.linear(given["x"], weight, given["bias"]),
    )


def weight_of(problem: Problem, given: Mapping[str, Any]) -> PackedWeight:
    """The packed weight among a call's values by name."""
    shape = (problem.n, given["k"])
    parts = (given["qweight"], given["scales"], given["zeros"], given["bits"], given["group_size"], shape)
    return PackedWeight(*parts, g_idx=given.get("g_idx"))


def _by_weight(
    problem: Problem, name: str, make: Callable[[Mapping[str, Any]], Any], run: Callable[[Any, Mapping[str, Any]], Any]
) -> Call:
    """``run`` on what ``make`` has made of a call's values by name, once for each tensor ``name`` among them."""
    names = registry.ops()[problem.op].parsed.names
    made: dict[int, Any] = {}

    def call(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        key = given[name].data_ptr()
        if key not in made:
            made[key] = make(given)
        return run(made[key], given)

    return call
