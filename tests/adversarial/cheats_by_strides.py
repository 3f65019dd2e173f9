"""A plugin file with gradients of attention that misread strides, and an honest one.

Heads must lie as rows of dense elements, as every fast kernel demands: so no layout of strided elements shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

import registry
from registry.artifact import Built
from registry.contracts import ATTENTION_BACKWARD
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

sys.path.append(str(Path(__file__).parent))
from kinds import implementations_in

KERNEL_REGISTRY_API = 1
GRAD_OUT, Q, OUT = 0, 1, 5
"""Places of arguments in the schema."""


class DenseHeads(Implementation):
    """The op's own gradient, for heads whose elements are neighbours."""

    op = "attention_backward"
    name = "strides.honest"
    returns_outputs = True
    any_size = True
    deterministic = False
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        arguments = problem.traits.arguments
        for name in ("grad_out", "q", "k", "v", "out") if arguments is not None else ():
            if arguments.tensors[name].strides[-1] != 1:
                yield f"the elements of a head of {name} are apart"

    def read(self, values: list[Any]) -> list[Any]:
        return values

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(_outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> Tensors:
            found = ATTENTION_BACKWARD.reference(*self.read(list(arguments)))
            return tuple(one.contiguous() for one in found)

        return run


class OutByGradient(DenseHeads):
    """Reads the outputs by the strides of their gradient."""

    name = "strides.out_by_gradient"

    def read(self, values: list[Any]) -> list[Any]:
        out: torch.Tensor = values[OUT]
        if out.numel():
            values[OUT] = out.as_strided(out.shape, values[GRAD_OUT].stride(), out.storage_offset())
        return values


class ZeroForNone(DenseHeads):
    """Takes a stride of 0 of the queries, which are expanded then, for one that was not given."""

    name = "strides.zero_for_none"

    def read(self, values: list[Any]) -> list[Any]:
        q: torch.Tensor = values[Q]
        dense = torch.empty(q.shape, device="meta").stride()
        steps = [stride or usual for stride, usual in zip(q.stride(), dense, strict=True)]
        values[Q] = q.as_strided(q.shape, steps, q.storage_offset())
        return values


@registry.implements("attention_backward")
def attention_backward_implementations() -> Iterable[Implementation]:
    """Gradients that misread a layout, and one that does not."""
    return implementations_in(__name__, "attention_backward")
