"""A plugin file of sums that a GPU adds in any order, and of noise as large as a rounding."""

from __future__ import annotations

from typing import Any

import torch

import registry
from registry.artifact import Built
from registry.device import Device
from registry.implementation import Implementation, Run, Tensors
from registry.problem import Problem
from registry.space import Config

KERNEL_REGISTRY_API = 1

PARTS = 16
"""Sums of every row: one alone would lose all that comes after its largest term, and be wrong."""


class AddsInAnyOrder(Implementation):
    """Sums rows by atomic additions, in the order in which they arrive, and says so: honest."""

    op, name = "softmax", "rounding.declared_atomics"
    deterministic = False

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        part = torch.arange(problem.cols, device=device.torch) % PARTS

        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            x, dim = arguments
            exponentials = torch.exp(x - x.amax(dim, keepdim=True))
            shape = list(x.shape)
            shape[dim] = PARTS
            sums = x.new_zeros(shape).index_add_(dim, part, exponentials)
            torch.div(exponentials, sums.sum(dim, keepdim=True), out=outputs[0])

        return run


class SecretlyAddsInAnyOrder(AddsInAnyOrder):
    """The same, and it does not say so."""

    name = "rounding.atomics"
    deterministic = True


class Noisy(Implementation):
    """Adds noise of the device's generator, less than a tenth of the tolerance."""

    op, name = "gelu", "rounding.noise"

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        def run(outputs: Tensors, arguments: tuple[Any, ...], scratch: Tensors) -> None:
            exact = torch.nn.functional.gelu(arguments[0], approximate=arguments[1])
            outputs[0].copy_(exact + 1e-7 * torch.rand_like(exact))

        return run


@registry.implements("softmax")
def softmax_implementations() -> list[Implementation]:
    """The one that says what it does, and the one that does not."""
    return [AddsInAnyOrder(), SecretlyAddsInAnyOrder()]


@registry.implements("gelu")
def gelu_implementations() -> list[Implementation]:
    """The one."""
    return [Noisy()]
