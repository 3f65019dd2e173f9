"""A plugin file with an op of its own, small, and an implementation for each way to end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import registry
from registry import Arguments, Floor, Implementation, Op, Problem, Tolerance

HERE = Path(__file__)


def reference(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def dims_of(arguments: Arguments) -> dict[str, registry.Value]:
    return {"n": arguments.tensor("x").shape[0], "dtype": str(arguments.tensor("x").dtype).removeprefix("torch.")}


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[torch.Tensor]:
    return (torch.randn(problem.n, generator=generator, device=generator.device, dtype=problem.torch_dtype),)


DOUBLE = Op(
    name="strange_plugin::double",
    schema="strange_plugin::double(Tensor x) -> Tensor y",
    version=1,
    reference=reference,
    problem=dims_of,
    inputs=inputs,
    floor=lambda problem: Floor(bytes=8 * problem.n, flop=problem.n),
    tolerance=Tolerance(
        rtol={"float32": 1e-6}, atol={"float32": 1e-6}, scale=lambda problem, reference: reference.abs()
    ),
    static=frozenset({"dtype"}),
    dynamic=frozenset({"n"}),
    kinds=("normal",),
    examples=({"n": 33, "dtype": "float32"},),
    baseline="strange_plugin.right",
)


def aborting(x: torch.Tensor) -> torch.Tensor:
    os.write(2, b"the kernel has come to its end\n")
    os.abort()


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right": lambda x: x + x,
    "wrong": lambda x: x * 3,
    "aborting": aborting,
}


@registry.defines
def ops() -> Iterable[Op]:
    return [DOUBLE]


@registry.implements("strange_plugin::double")
def implementations() -> Iterable[Implementation]:
    return [
        registry.implementation_of("strange_plugin::double", f"strange_plugin.{name}", function, device_types=("cpu",))
        for name, function in WAYS.items()
    ]
