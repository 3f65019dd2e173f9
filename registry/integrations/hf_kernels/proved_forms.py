"""Proofs of what marked classes compute, each made once.

They run the class's own forward on the CPU, in a thread of their own: the first call of a layer may be traced by
torch.compile, recorded in a CUDA graph, or stand in a transform of torch.func, in autocast or in inference mode.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

from ...api import unrecorded
from ...tracing import constant_while_tracing
from ..transformers.forwards.activations import ActivationKind, activation_kind
from ..transformers.forwards.norms import OFFSETS, normed
from ..transformers.proofs import disagreement

_GELUS: weakref.WeakKeyDictionary[torch.nn.Module, ActivationKind | None] = weakref.WeakKeyDictionary()
_WIDTH = 8
_EPSILONS = (1e-6, 0.5)
"""A proof holds for any epsilon, which torch.compile may know as a symbol alone: of these one counts by itself."""

_Result = TypeVar("_Result")

GATES: Mapping[object, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
}
"""What gated norms apply to their gate, by the name that they keep."""


@constant_while_tracing
def norm_offset(norm: type[torch.nn.Module], eps_name: str, cols: int) -> float | None:
    """The number that a class of norms adds to its weight [cols], such as 1 for Gemma.

    None for a class that computes no RMS norm by the weight and the epsilon of that name alone.
    """
    return _known_offset(norm, eps_name, cols)  # type: ignore[arg-type]


@cache
def _known_offset(norm: Any, eps_name: str, cols: int) -> float | None:
    def prove() -> float | None:
        return next((offset for offset in OFFSETS if _is_norm(norm, eps_name, cols, offset=offset)), None)

    return _alone(prove)


@constant_while_tracing
def gates_norm(norm: type[torch.nn.Module], eps_name: str, cols: int, activation: object) -> bool:
    """Whether a class computes an RMS norm times its activation, one of ``GATES``, of a gate, by these alone."""
    return activation in GATES and _known_gate(norm, eps_name, cols, activation)  # type: ignore[arg-type]


@cache
def _known_gate(norm: Any, eps_name: str, cols: int, activation: str) -> bool:
    return _alone(lambda: _is_norm(norm, eps_name, cols, activation=activation))


def _is_norm(norm: Any, eps_name: str, cols: int, offset: float = 0.0, activation: str | None = None) -> bool:
    """Whether a class of norms computes what the op does, times that activation of a gate if one is given."""
    weight, gate = _drawn(cols), _drawn(2, 5, cols)
    attributes: dict[str, Any] = {"weight": torch.nn.Parameter(weight)}
    gates: tuple[torch.Tensor, ...] = ()
    factor: torch.Tensor | float = 1.0
    if activation is not None:
        attributes["activation"] = activation
        gates, factor = (gate,), GATES[activation](gate)

    def differs(eps: float) -> str:
        def own(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = norm.forward(_shell(norm, attributes | {eps_name: eps}), x, *gates)
            return y

        return disagreement(own, lambda x: normed(x, weight, eps, offset) * factor, cols, weight)

    return not any(map(differs, _EPSILONS))


def gelu_approximation(module: torch.nn.Module) -> str | None:
    """The argument ``approximate`` of the op that computes an activation's own forward; None for another function."""
    if module not in _GELUS:
        _GELUS[module] = _alone(lambda: activation_kind(type(module).forward.__get__(module)))
    kind = _GELUS[module]
    return None if kind in {None, "silu"} else "tanh" if kind == "gelu_tanh" else "none"


def rotates_halves(function: type[torch.nn.Module]) -> bool:
    """Whether a class, which ``kernels`` has made of a function, rotates the halves of heads against each other."""
    return _known_rotation(function)  # type: ignore[arg-type]


@cache
def _known_rotation(function: Any) -> bool:
    return _alone(lambda: _rotates_halves(function))


def _rotates_halves(function: type[Any]) -> bool:
    half = _drawn(2, 5, _WIDTH // 2)
    angles = torch.cat((half, half), -1)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (3, -1)).transpose(1, 2)
        return torch.cat(
            function.forward(_shell(function, {}), heads[:, :2], heads[:, 2:], angles.cos(), angles.sin()), 1
        )

    def known(x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (3, -1)).transpose(1, 2)
        one, other = heads.chunk(2, -1)
        y: torch.Tensor = heads * angles.cos()[:, None] + torch.cat((-other, one), -1) * angles.sin()[:, None]
        return y

    return not disagreement(rotated, known, 3 * _WIDTH, half)


def _drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, device="cpu", dtype=torch.float32, generator=generator)


def _shell(kind: Any, attributes: Mapping[str, object]) -> Any:
    """A module of a class that has these attributes alone: a forward that reads something else raises."""
    # past a class's own way to make modules, as FSDP's has one
    shell: Any = object.__new__(kind)
    torch.nn.Module.__init__(shell)
    for name, value in attributes.items():
        setattr(shell, name, value)
    return shell


def _alone(prove: Callable[[], _Result]) -> _Result:
    """The result of ``prove()`` in a thread of its own, where no mode and no transform of the caller is active."""

    def proved() -> _Result:
        with unrecorded():
            return prove()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(proved).result()
