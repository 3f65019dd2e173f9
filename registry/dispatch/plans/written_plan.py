"""A plan as one flat function: prepared tensors, allocations and launches in line.

The text holds no size: plans of one form are one compiled text with other shapes, extents and numbers behind its names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...backends.cuda_stream import current_device, only_gpu
from ...backends.written_run import Operands, Written, names_of, written_of
from ...generated_code import CodeTemplate, template
from ...problem import TensorSpec
from ..torch_side.torch_private import function_modes, sized_allocator, unseen
from .prepared_hit import Hit

MOST_TEMPLATES = 4096
"""Compiled texts that are kept, with the names that do not change with a size."""

_templates: dict[Hashable, CodeTemplate] = {}


def written_call(
    values: int,
    device: torch.device,
    run: Any,
    outputs: Sequence[TensorSpec],
    scratch: Sequence[TensorSpec],
    hit: Hit | None,
    *,
    returns_outputs: bool = False,
) -> Callable[..., Any]:
    """``call(*values)``: allocates, runs and returns the outputs as the op does, all on ``device``.

    The values are named ``a0``, ``a1`` ... in the text.
    """
    written = None if returns_outputs else written_of(run)
    outputs = () if returns_outputs else outputs
    form = None if written is None else written.form
    lines = None if hit is None else tuple(hit.lines)
    others = device.type == "cuda" and not only_gpu()
    key = (values, device, others, form, len(outputs), len(scratch), lines, returns_outputs)
    found = _templates.get(key)
    if found is None:
        while len(_templates) >= MOST_TEMPLATES:
            _templates.pop(next(iter(list(_templates))), None)
        found = _templates[key] = _template(
            values, device, others, written, len(outputs), len(scratch), hit, returns_outputs
        )
    names: dict[str, Any] = {"run": run} if written is None else names_of(written)
    if written is None:
        names |= {"e_modes": function_modes, "e_unseen": unseen}
    if others:
        names |= {"e_current_device": current_device, "e_on": torch.cuda.device, "e_device": device}
    if hit is not None:
        names |= hit.names
    for letter, specs in (("y", outputs), ("t", scratch)):
        for place, spec in enumerate(specs):
            names[f"make_{letter}{place}"] = sized_allocator(spec.dtype, spec.device)
            names[f"shape_{letter}{place}"] = spec.shape
            names[f"strides_{letter}{place}"] = spec.strides
            names[f"dtype_{letter}{place}"] = spec.dtype
    return found.function(names)


def _template(
    values: int,
    device: torch.device,
    others: bool,
    written: Written | None,
    outputs: int,
    scratch: int,
    hit: Hit | None,
    returns_outputs: bool,
) -> CodeTemplate:
    given = [f"a{place}" for place in range(values)]
    made, held = [f"y{place}" for place in range(outputs)], [f"t{place}" for place in range(scratch)]
    items = {
        "outputs": (*made,),
        "arguments": (*given, *(hit.prepared if hit is not None else ())),
        "scratch": (*held,),
    }
    after = f"return {_returned(made)}"
    operands = Operands({group: _tuple(parts) for group, parts in items.items()}, items, after, on_device=True)
    if hit is not None:
        operands = replace(operands, addresses=hit.addresses, stream=hit.stream)
    lines = [*(_on_its_device(device, given) if others else []), *([] if written else _unseen(given))]
    lines += [*(hit.lines if hit is not None else ()), *map(_allocated, (*made, *held))]
    if written is not None:
        lines += [*written.lines(operands), after]
    elif returns_outputs:
        lines.append(f"return {operands.call('run')}")
    else:
        lines += [operands.call("run"), after]
    return template("plan", ", ".join([*given, "/"] if given else []), lines)


def _on_its_device(device: torch.device, given: Sequence[str]) -> list[str]:
    """Lines that make the GPU current: kernels and allocations go to the current one, whatever the tensors say."""
    return [
        f"if e_current_device() != {device.index}:",
        f"    with e_on(e_device): return plan({', '.join(given)})",
    ]


def _unseen(given: Sequence[str]) -> list[str]:
    """Lines that keep the operations of torch which a run is made of from a TorchFunctionMode.

    What such a mode returns in place of an operation is not in the outputs that the run was given to write to.
    """
    return ["if e_modes():", f"    with e_unseen(): return plan({', '.join(given)})"]


def _allocated(name: str) -> str:
    return f"{name} = make_{name}(shape_{name}, strides_{name}, dtype_{name})"


def _returned(made: Sequence[str]) -> str:
    """An op without outputs returns None, one with several a tuple."""
    if not made:
        return "None"
    return made[0] if len(made) == 1 else _tuple(made)


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"
