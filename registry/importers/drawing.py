"""Running a problem file's own functions: on a device, from a seed, as they lie in nested data."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..errors import InvalidDefinitionError

_DRAWING = threading.RLock()
"""Held while drawing: the default generators, and the class of generators, are the whole process's."""


_SAME = 1e-6


@dataclass(frozen=True)
class Slot:
    """The place of tensor number ``index`` in a template."""

    index: int


def taken_apart(data: Any, tensors: list[torch.Tensor]) -> Any:
    """The template of nested data: every tensor is appended to ``tensors`` and leaves a slot."""
    if isinstance(data, torch.Tensor):
        tensors.append(data.detach())
        return Slot(len(tensors) - 1)
    if isinstance(data, dict):
        return {name: taken_apart(value, tensors) for name, value in data.items()}
    if isinstance(data, list | tuple):
        parts = [taken_apart(value, tensors) for value in data]
        if isinstance(data, list):
            return parts
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    return data


def put_together(template: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The data of a template with these tensors in its slots."""
    if isinstance(template, Slot):
        return tensors[template.index]
    if isinstance(template, dict):
        return {name: put_together(value, tensors) for name, value in template.items()}
    if isinstance(template, list | tuple):
        parts = [put_together(value, tensors) for value in template]
        if isinstance(template, list):
            return parts
        return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
    return template


def outputs_of(returned: Any, told: str) -> tuple[torch.Tensor, ...]:
    """The tensors that a reference returned. Raises InvalidDefinitionError if there is none."""
    found: list[torch.Tensor] = []
    taken_apart(returned, found)
    if not found:
        raise InvalidDefinitionError(f"{told} returned {type(returned).__name__}, expected tensors")
    return tuple(found)


def same_outputs(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    """Whether outputs are equal but for rounding: by less than a millionth of the largest element."""

    def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
        if a.shape != b.shape:
            return False
        wide = a.double()
        return not a.numel() or bool((wide - b.double()).abs().max() <= _SAME * wide.abs().max())

    return len(one) == len(other) and all(map(alike, one, other))


def seed_from(generator: torch.Generator) -> int:
    """A seed drawn from a generator."""
    return int(torch.randint(0, 2**31 - 1, (), generator=generator, device=generator.device).item())


class _Moved(TorchFunctionMode):
    """Sends to ``device`` what code wants on a GPU: ``device="cuda"`` and ``.cuda()``."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _is_gpu(kwargs.get("device")):
            kwargs["device"] = self._device
        if func is torch.Tensor.cuda:
            return args[0].to(self._device)
        if func is torch.Tensor.to:
            args = tuple(self._device if _is_gpu(one) else one for one in args)
        return func(*args, **kwargs)


def _is_gpu(place: Any) -> bool:
    return isinstance(place, str | torch.device) and str(place).startswith("cuda")


@contextlib.contextmanager
def drawing(device: torch.device, seed: int) -> Iterator[None]:
    """A context where torch draws on ``device`` from ``seed``; the process's own generators are left as they were.

    On another device than a GPU, what the code wants on a GPU is made there, generators too.
    """
    gpus = [device] if device.type == "cuda" else []
    with (
        _DRAWING,
        torch.random.fork_rng(devices=gpus),
        torch.device(device),
        torch.no_grad(),
        contextlib.ExitStack() as stack,
    ):
        if device.type != "cuda":
            stack.enter_context(_Moved(device))
            stack.enter_context(_generators_on_cpu())
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu.index or 0].manual_seed(seed)
        yield


@contextlib.contextmanager
def _generators_on_cpu() -> Iterator[None]:
    real = torch.Generator

    def made(device: Any = "cpu") -> torch.Generator:
        return real("cpu" if _is_gpu(device) or str(device) == "meta" else device)

    torch.Generator = made  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.Generator = real  # type: ignore[misc]
