"""A plan as one generated function that contains look-ups of prepared tensors, allocations and launches.

The text contains no size, so that plans of one form share a compiled text. Its last parameters are shapes, extents and
numbers, whose defaults are those of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

import torch

from ...backends.cuda_stream import current_device, only_gpu
from ...backends.written_run import Operands, WrittenForm, WrittenRun
from ...generated_code import CodeTemplate, template
from ...implementation import Run
from ...problem import TensorSpec
from ..torch_side.torch_private import allocator, function_modes, unseen
from .prepared_hit import Hit

MOST_TEMPLATES = 4096
"""The most compiled texts that are kept, each with the values of names that do not change with a size."""

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
    """A function ``call(*values)`` that allocates on ``device``, runs, and returns the outputs as the op does.

    In the text the values are ``a0``, ``a1`` ... ``refuse_ignored(returned, given)`` raises if a run returned tensors
    that it must not return.
    """
    form = run.form if isinstance(run, WrittenRun) and not returns_outputs else None
    outputs = () if returns_outputs else outputs
    others = device.type == "cuda" and not only_gpu()
    call = _CallForm(values, device, others, len(outputs), len(scratch), returns_outputs)
    key = call, form, None if hit is None else tuple(hit.lines)
    found = _templates.get(key)
    if found is None:
        while len(_templates) >= MOST_TEMPLATES:
            _templates.pop(next(iter(list(_templates))), None)
        found = _templates[key] = _template(call, form, hit)
    if form is not None:
        names = form.all_names()
    else:
        names = {"e_modes": function_modes, "e_unseen": unseen, "e_ignored": refuse_ignored}
    if others:
        names |= {"e_current_device": current_device, "e_on": torch.cuda.device, "e_device": device}
    if hit is not None:
        names |= hit.names
    for letter, specs in (("y", outputs), ("t", scratch)):
        for place, spec in enumerate(specs):
            names[f"make_{letter}{place}"] = allocator(spec.dtype, spec.device)
            names[f"dtype_{letter}{place}"] = spec.dtype
    sizes = [size for spec in (*outputs, *scratch) for size in (spec.shape, spec.strides)]
    return found.function(names, (run, *run.numbers, *sizes) if form is not None else (run, *sizes))


def resized_made(was: Mapping[str, TensorSpec], made: Mapping[str, TensorSpec]) -> list[Any] | None:
    """The sizes of tensors ``made`` instead of those of ``was``, as arguments of ``resizing_call``.

    None if names or dtypes differ, or if only one of two tensors is empty.
    """
    if [*was] != [*made]:
        return None
    sizes: list[Any] = []
    for one, other in zip(was.values(), made.values(), strict=True):
        if one.dtype is not other.dtype or (0 in one.shape) is not (0 in other.shape):
            return None
        sizes += other.shape, other.strides
    return sizes


def resizing_call(call: Any, former: Run) -> Callable[[Run, Sequence[Any]], Callable[..., Any] | None]:
    """``resized(run, sizes)``: a copy of ``call``, which was generated for the run ``former``, for another run.

    It is the text of ``call`` with other sizes, those of outputs and scratch. None if ``run`` needs another text.
    """
    code, names, name = call.__code__, call.__globals__, call.__name__
    form = former.form if isinstance(former, WrittenRun) else None

    def resized(run: Run, sizes: Sequence[Any]) -> Callable[..., Any] | None:
        if type(run) is WrittenRun:
            return FunctionType(code, names, name, (run, *run.numbers, *sizes)) if run.form is form else None
        return None if form is not None else FunctionType(code, names, name, (run, *sizes))

    return resized


def _sized_names(form: WrittenForm | None, made: Sequence[str]) -> list[str]:
    """The text's last parameters: the run, its numbers, and shape and strides of each allocated tensor."""
    names = ["k_run"] if form is None else ["k_run", *form.sized]
    return [*names, *(f"{kind}_{name}" for name in made for kind in ("shape", "strides"))]


class _CallForm(NamedTuple):
    """Key of a plan's text: numbers of tensors and values, and the device; ``others``: another GPU may be current."""

    values: int
    device: torch.device
    others: bool
    outputs: int
    scratch: int
    returns_outputs: bool


def _template(call: _CallForm, form: WrittenForm | None, hit: Hit | None) -> CodeTemplate:
    given = [f"a{place}" for place in range(call.values)]
    made, held = [f"y{place}" for place in range(call.outputs)], [f"t{place}" for place in range(call.scratch)]
    items = {
        "outputs": (*made,),
        "arguments": (*given, *(hit.prepared if hit is not None else ())),
        "scratch": (*held,),
    }
    after = f"return {_returned(made)}"
    operands = Operands({group: _tuple(parts) for group, parts in items.items()}, items, after, on_device=True)
    if hit is not None:
        operands = replace(operands, addresses=hit.addresses, stream=hit.stream)
    parameters = [*given, *_sized_names(form, (*made, *held))]
    again = f"return plan({', '.join(parameters)})"
    lines = []
    if call.others:
        # kernels and allocations go to the current GPU, whatever the tensors say
        lines += [f"if e_current_device() != {call.device.index}:", f"    with e_on(e_device): {again}"]
    if form is None:
        # a TorchFunctionMode may return another tensor than the run has written to
        lines += ["if e_modes():", f"    with e_unseen(): {again}"]
    lines += hit.lines if hit is not None else ()
    lines += [f"{name} = make_{name}(shape_{name}, strides_{name}, dtype_{name})" for name in (*made, *held)]
    if form is not None:
        lines += [*form.lines(operands), after]
    elif call.returns_outputs:
        lines.append(f"return {operands.call('k_run')}")
    else:
        every = _tuple([name for parts in items.values() for name in parts])
        ignored = f"if returned is not None and e_ignored is not None: e_ignored(returned, {every})"
        lines += [f"returned = {operands.call('k_run')}", ignored, after]
    return template("plan", ", ".join([*parameters, "/"]), lines)


def _returned(made: Sequence[str]) -> str:
    """The returned expression: None without outputs, a tuple for several."""
    if not made:
        return "None"
    return made[0] if len(made) == 1 else _tuple(made)


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"
