"""A plan as one flat function: prepared tensors, allocations and launches in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...backends.cuda_stream import current_device, only_gpu
from ...backends.written_run import Operands, function, written_of
from ...problem import TensorSpec
from ..torch_side.torch_private import function_modes, sized_allocator, unseen
from .prepared_hit import Hit


@dataclass(frozen=True)
class Allocation:
    """A tensor that each call makes anew; ``shape`` and ``strides`` are expressions."""

    spec: TensorSpec
    shape: Sequence[str]
    strides: Sequence[str]


@dataclass(frozen=True)
class Sizes:
    """``lines`` that read the sizes of a call, and what the run takes of them behind its three groups."""

    lines: Sequence[str] = ()
    rows: tuple[str, ...] = ()


def fixed(spec: TensorSpec) -> Allocation:
    """The same tensor for every call."""
    return Allocation(spec, [*map(str, spec.shape)], [*map(str, spec.strides)])


def written_call(
    values: int,
    device: torch.device,
    run: Any,
    outputs: Sequence[Allocation],
    scratch: Sequence[Allocation],
    hit: Hit | None,
    *,
    returns_outputs: bool = False,
    sizes: Sizes = Sizes(),
) -> Callable[..., Any]:
    """``call(*values)``: allocates, runs and returns the outputs as the op does, all on ``device``.

    The values are named ``a0``, ``a1`` ...
    """
    given = [f"a{place}" for place in range(values)]
    names: dict[str, Any] = dict(hit.names) if hit is not None else {}
    written = None if returns_outputs else written_of(run)
    lines = [*_on_its_device(device, given, names), *([] if written else _unseen(given, names))]
    lines += [*sizes.lines, *(hit.lines if hit is not None else ())]
    made = [] if returns_outputs else [_allocated(f"y{place}", one, lines, names) for place, one in enumerate(outputs)]
    held = [_allocated(f"t{place}", one, lines, names) for place, one in enumerate(scratch)]
    items = {
        "outputs": (*made,),
        "arguments": (*given, *(hit.prepared if hit is not None else ())),
        "scratch": (*held,),
    }
    groups = {group: _tuple(parts) for group, parts in items.items()}
    after = f"return {_returned(made)}"
    operands = Operands(groups, items, sizes.rows, after, on_device=True)
    if hit is not None:
        operands = replace(operands, addresses=hit.addresses, stream=hit.stream)
    if written is None:
        names["run"] = run
        ran = operands.call("run")
        lines += [f"return {ran}"] if returns_outputs else [ran, after]
    else:
        names |= written.names
        lines += [*written.lines(operands), after]
    return function("plan", ", ".join([*given, "/"] if given else []), lines, names)


def _on_its_device(device: torch.device, given: Sequence[str], names: dict[str, Any]) -> list[str]:
    """Lines that make the GPU current: kernels and allocations go to the current one, whatever the tensors say."""
    if device.type != "cuda" or only_gpu():
        return []
    names |= {"e_current_device": current_device, "e_on": torch.cuda.device, "e_device": device}
    return [
        f"if e_current_device() != {device.index}:",
        f"    with e_on(e_device): return plan({', '.join(given)})",
    ]


def _unseen(given: Sequence[str], names: dict[str, Any]) -> list[str]:
    """Lines that keep the operations of torch which a run is made of from a TorchFunctionMode.

    What such a mode returns in place of an operation is not in the outputs that the run was given to write to.
    """
    names |= {"e_modes": function_modes, "e_unseen": unseen}
    return ["if e_modes():", f"    with e_unseen(): return plan({', '.join(given)})"]


def _allocated(name: str, one: Allocation, lines: list[str], names: dict[str, Any]) -> str:
    names[f"make_{name}"] = sized_allocator(one.spec.dtype, one.spec.device)
    names[f"dtype_{name}"] = one.spec.dtype
    lines.append(f"{name} = make_{name}({_tuple(one.shape)}, {_tuple(one.strides)}, dtype_{name})")
    return name


def _returned(made: Sequence[str]) -> str:
    """An op without outputs returns None, one with several a tuple."""
    if not made:
        return "None"
    return made[0] if len(made) == 1 else _tuple(made)


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"
