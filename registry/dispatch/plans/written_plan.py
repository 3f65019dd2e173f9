"""A plan as one flat function: prepared tensors, allocations and launches in line.

The text holds no size: plans of one form are one compiled text with other shapes, extents and numbers behind its names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...artifact import Signature
from ...backends.cuda_stream import current_device, only_gpu
from ...backends.written_run import Operands, Written, WrittenRun, written_of
from ...generated_code import CodeTemplate, template, with_names
from ...implementation import Run
from ...problem import TensorSpec
from ..torch_side.torch_private import allocator, function_modes, unseen
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
    refuse_ignored: Callable[[Any, tuple[Any, ...]], None] | None = None,
) -> Callable[..., Any]:
    """``call(*values)``: allocates, runs and returns the outputs as the op does, all on ``device``.

    The values are named ``a0``, ``a1`` ... in the text. ``refuse_ignored(returned, given)`` raises for what a run
    must not return.
    """
    written = None if returns_outputs else written_of(run)
    outputs = () if returns_outputs else outputs
    others = device.type == "cuda" and not only_gpu()
    shape = _Shape(values, device, others, len(outputs), len(scratch), returns_outputs)
    key = shape, None if written is None else written.form, None if hit is None else tuple(hit.lines)
    found = _templates.get(key)
    if found is None:
        while len(_templates) >= MOST_TEMPLATES:
            _templates.pop(next(iter(list(_templates))), None)
        found = _templates[key] = _template(shape, written, hit)
    names: dict[str, Any] = {"run": run} if written is None else written.all_names
    if written is None:
        names |= {"e_modes": function_modes, "e_unseen": unseen, "e_ignored": refuse_ignored}
    if others:
        names |= {"e_current_device": current_device, "e_on": torch.cuda.device, "e_device": device}
    if hit is not None:
        names |= hit.names
    for letter, specs in (("y", outputs), ("t", scratch)):
        for place, spec in enumerate(specs):
            names[f"make_{letter}{place}"] = allocator(spec.dtype, spec.device)
            names[f"shape_{letter}{place}"] = spec.shape
            names[f"strides_{letter}{place}"] = spec.strides
            names[f"dtype_{letter}{place}"] = spec.dtype
    return found.function(names)


def resized_call(
    call: Callable[..., Any], former: Run, run: Run, was: Signature, signature: Signature
) -> Callable[..., Any] | None:
    """``call``, which was written for the ``former`` of two runs, for the other: the same text with other names.

    ``was`` and ``signature`` tell what the two calls allocate. None where the text would be another one.
    """
    names = dict(call.__globals__)
    if "run" in names:
        names["run"] = run
    elif run is not former:
        if not isinstance(former, WrittenRun) or not isinstance(run, WrittenRun):
            return None
        if former.written.form is not run.written.form:
            return None
        names |= run.written.names
    for letter, others, specs in (("y", was.outputs, signature.outputs), ("t", was.scratch, signature.scratch)):
        if len(others) != len(specs):
            return None
        for place, (other, spec) in enumerate(zip(others.values(), specs.values(), strict=True)):
            if spec.dtype is not other.dtype:
                return None
            names[f"shape_{letter}{place}"] = spec.shape
            names[f"strides_{letter}{place}"] = spec.strides
    return with_names(call, names)


class _Shape(NamedTuple):
    """How many tensors and numbers a plan handles, and where; ``others``: another GPU may be the current one."""

    values: int
    device: torch.device
    others: bool
    outputs: int
    scratch: int
    returns_outputs: bool


def _template(shape: _Shape, written: Written | None, hit: Hit | None) -> CodeTemplate:
    given = [f"a{place}" for place in range(shape.values)]
    made, held = [f"y{place}" for place in range(shape.outputs)], [f"t{place}" for place in range(shape.scratch)]
    items = {
        "outputs": (*made,),
        "arguments": (*given, *(hit.prepared if hit is not None else ())),
        "scratch": (*held,),
    }
    after = f"return {_returned(made)}"
    operands = Operands({group: _tuple(parts) for group, parts in items.items()}, items, after, on_device=True)
    if hit is not None:
        operands = replace(operands, addresses=hit.addresses, stream=hit.stream)
    lines = [*(_on_its_device(shape.device, given) if shape.others else []), *([] if written else _unseen(given))]
    lines += hit.lines if hit is not None else ()
    lines += [f"{name} = make_{name}(shape_{name}, strides_{name}, dtype_{name})" for name in (*made, *held)]
    if written is not None:
        lines += [*written.lines(operands), after]
    elif shape.returns_outputs:
        lines.append(f"return {operands.call('run')}")
    else:
        every = _tuple([name for parts in items.values() for name in parts])
        ignored = f"if returned is not None and e_ignored is not None: e_ignored(returned, {every})"
        lines += [f"returned = {operands.call('run')}", ignored, after]
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


def _returned(made: Sequence[str]) -> str:
    """An op without outputs returns None, one with several a tuple."""
    if not made:
        return "None"
    return made[0] if len(made) == 1 else _tuple(made)


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"
