"""Products with 2:4 sparse weights by cuSPARSELt, NVIDIA's library for sparse tensor cores, as torch holds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from registry.artifact import Built
from registry.device import Device
from registry.errors import NotLaunchedError
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config, Space

from .cusparselt_private import compressed, missing, product
from .sparse24 import dense

_ROWS = 8
"""What the library wants a multiple of: other rows of activations are padded with zeros."""
_WEIGHT = 32
_ALGORITHMS = 40
"""The numbers of algorithms that a version has had, 0 to 37, with room for two; what a size lacks is unsupported."""
_OF_HOPPER = Space(algorithm=list(range(_ALGORITHMS)), split_k=[1, -1])
_BEFORE_HOPPER = Space(algorithm=list(range(_ALGORITHMS)), split_k=[1, 2, 4])


class CuSparseLt(Implementation):
    """Sparse tensor cores multiply what is kept: half of the work of the dense product.

    The library's order of the weight is made once, of 1.125 bytes for each of its elements, kept or not: as many as the
    weight itself has. Of rows that are no multiple of 128 it has a little more.
    """

    op = "gemm_sparse24"
    name = "torch.cusparselt"
    returns_outputs = True
    any_size = True

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        if reason := missing():
            yield reason
        if not device.architecture.startswith("sm_") or device.capability < (8, 0):
            yield f"sparse tensor cores on {device.architecture} (NVIDIA's compute capability 8.0 has them)"
        if problem.dtype not in ("bfloat16", "float16"):
            yield f"dtype is {problem.dtype}, expected bfloat16 or float16 (the library rounds float32 to TF32)"
        if problem.bias:
            yield "its product with a bias reads a misaligned address (torch 2.11), after which a GPU takes no launch"
        if not problem.traits["aligned"]:
            yield "tensors do not begin at a multiple of 16 bytes"
        if problem.n % _WEIGHT or problem.k % _WEIGHT:
            yield f"n={problem.n} and k={problem.k} must be multiples of {_WEIGHT}"

    def preference(self, problem: Problem, device: Device) -> float:
        """Below every other implementation until it is tuned, since it holds the weight a second time."""
        return -0.75

    def space(self, problem: Problem, device: Device) -> Space:
        """The number of an algorithm, and parts of k: -1 is the library's own division, which Hopper has."""
        return _OF_HOPPER if device.capability >= (9, 0) else _BEFORE_HOPPER

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"compressed": ("values", "meta")}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight in the library's order, by way of the dense one."""
        return compressed(dense(*values))

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: all algorithms read one copy of a weight."""
        return {}

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """Bind the product; the algorithm is looked up at each call, which raises NotLaunchedError without it."""
        algorithm, split_k = config["algorithm"], config["split_k"]

        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> torch.Tensor:
            x, values, _, k, bias, weight = arguments
            rows = x.reshape(-1, k).contiguous()
            m = rows.shape[0]
            if rest := -m % _ROWS:
                rows = torch.nn.functional.pad(rows, (0, 0, 0, rest))
            try:
                y = product(weight, rows, bias, algorithm, split_k)
            except RuntimeError as fault:
                if "cusparseLt" not in str(fault):
                    raise
                shown = f"cuSPARSELt has no algorithm {algorithm} with split_k={split_k} for m={m}"
                raise NotLaunchedError(f"torch.cusparselt: {shown}: {str(fault).splitlines()[0]}") from fault
            return (y[:m] if rest else y).view(*x.shape[:-1], values.shape[0])

        return run
