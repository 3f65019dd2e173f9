"""apply_rotary and its gradient: torch's products and sums, and what Inductor makes of them."""

from __future__ import annotations

from typing import Any

import torch

from registry.artifact import Built
from registry.backends.inductor import InductorImplementation
from registry.device import Device
from registry.implementation import Run, Tensors
from registry.problem import Problem
from registry.space import Config

from ..native import Native

CosinesAndSines = tuple[torch.Tensor, torch.Tensor]


def angles_of(table: torch.Tensor, positions: torch.Tensor) -> CosinesAndSines:
    """Cosines and sines ``[..., 1, rotary_dim / 2]`` of positions ``[...]``."""
    # not table[positions], which waits for the device where positions have no dimension
    cos, sin = torch.nn.functional.embedding(positions, table).unsqueeze(-2).chunk(2, -1)
    return cos, sin


def _heads(x: torch.Tensor, angles: CosinesAndSines, head_size: int) -> torch.Tensor:
    return x if x.dim() == angles[0].dim() else x.unflatten(-1, (x.shape[-1] // head_size, head_size))


def _halves(x: torch.Tensor, is_neox: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]) if is_neox else (x[..., ::2], x[..., 1::2])


def rotated(x: torch.Tensor, angles: CosinesAndSines, head_size: int, is_neox: bool) -> torch.Tensor:
    """Heads rotated in the wider dtype of theirs and the angles'; row-major."""
    (cos, sin), heads = angles, _heads(x, angles, head_size)
    part, rest = heads[..., : 2 * cos.shape[-1]], heads[..., 2 * cos.shape[-1] :]
    a, b = _halves(part, is_neox)
    pairs = (a * cos - b * sin, b * cos + a * sin)
    turned = torch.cat(pairs, -1) if is_neox else torch.stack(pairs, -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), rest), -1).reshape(x.shape).contiguous()


def rotate_into(out: torch.Tensor, x: torch.Tensor, angles: CosinesAndSines, head_size: int, is_neox: bool) -> None:
    """Write ``rotated`` to a row-major tensor."""
    (cos, sin), heads, target = angles, _heads(x, angles, head_size), _heads(out, angles, head_size)
    width = 2 * cos.shape[-1]
    a, b = _halves(heads[..., :width], is_neox)
    first, second = _halves(target[..., :width], is_neox)
    first.copy_(a * cos - b * sin)
    second.copy_(b * cos + a * sin)
    target[..., width:].copy_(heads[..., width:])


class ApplyRotary(Native):
    """Rows of the table, four products, a sum and a difference, and copies into the outputs."""

    op = "apply_rotary"
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            positions, query, key, head_size, table, is_neox = arguments
            angles = angles_of(table, positions)
            for out, x in zip(outputs, (query, key), strict=True):
                rotate_into(out, x, angles, head_size, is_neox)

        return run


class ApplyRotaryBackward(Native):
    """The rotation by the opposite angles."""

    op = "apply_rotary_backward"
    mixed = True

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        """The run for any layout and size; a gradient that is not needed is left empty."""

        def run(outputs: Tensors, arguments: tuple[Any, ...], _scratch: Tensors) -> None:
            query, key, positions, table, head_size, is_neox, *needs = arguments
            cos, sin = angles_of(table, positions)
            for out, x, need in zip(outputs, (query, key), needs, strict=True):
                if need:
                    rotate_into(out, x, (cos, -sin), head_size, is_neox)

        return run


class CompiledApplyRotary(InductorImplementation):
    """The products and sums in one pass over query and one over key."""

    op = "apply_rotary"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes positions, query, key, the size of a head, the table and the style."""
        positions, query, key, head_size, table, is_neox = values
        angles = angles_of(table, positions)
        return tuple(rotated(x, angles, head_size, is_neox) for x in (query, key))


class CompiledApplyRotaryBackward(InductorImplementation):
    """One pass over each gradient, by the opposite angles."""

    op = "apply_rotary_backward"
    name = "torch.compile"
    mixed = True

    def function(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """Takes both gradients, positions, the table, the size of a head, the style, and which are needed."""
        query, key, positions, table, head_size, is_neox, *needs = values
        cos, sin = angles_of(table, positions)
        return tuple(
            rotated(x, (cos, -sin), head_size, is_neox) if need else x.new_empty(0)
            for x, need in zip((query, key), needs, strict=True)
        )
