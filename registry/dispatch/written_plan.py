"""A plan as one flat function: prepared tensors, allocations and launches in line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backends.written_run import Operands, function, written_of
from ..problem import TensorSpec
from .prepared_hit import Hit
from .torch_private import sized_allocator


@dataclass(frozen=True)
class Allocation:
    """A tensor that each call makes anew; ``shape`` and ``strides`` are expressions."""

    spec: TensorSpec
    shape: Sequence[str]
    strides: Sequence[str]


def fixed(spec: TensorSpec) -> Allocation:
    """The same tensor for every call."""
    return Allocation(spec, [*map(str, spec.shape)], [*map(str, spec.strides)])


def written_call(
    values: int,
    run: Any,
    outputs: Sequence[Allocation],
    scratch: Sequence[Allocation],
    hit: Hit | None,
    *,
    returns_outputs: bool = False,
    opening: Sequence[str] = (),
    rows: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """``call(*values)``: allocates, runs and returns the outputs as the op does.

    The values are named ``a0``, ``a1`` ...; ``opening`` lines come first. ``rows``: what the run takes besides.
    """
    given = [f"a{place}" for place in range(values)]
    names: dict[str, Any] = dict(hit.names) if hit is not None else {}
    lines = [*opening, *(hit.lines if hit is not None else ())]
    made = [] if returns_outputs else [_allocated(f"y{place}", one, lines, names) for place, one in enumerate(outputs)]
    held = [_allocated(f"t{place}", one, lines, names) for place, one in enumerate(scratch)]
    items = {
        "outputs": (*made,),
        "arguments": (*given, *(hit.prepared if hit is not None else ())),
        "scratch": (*held,),
    }
    groups = {group: _tuple(parts) for group, parts in items.items()}
    after = f"return {made[0] if len(made) == 1 else _tuple(made)}"
    operands = Operands(groups, items, rows, after)
    if hit is not None:
        operands = replace(operands, addresses=hit.addresses, stream=hit.stream)
    written = None if returns_outputs else written_of(run)
    if written is None:
        names["run"] = run
        ran = operands.call("run")
        lines += [f"return {ran}"] if returns_outputs else [ran, after]
    else:
        names |= written.names
        lines += [*written.lines(operands), after]
    return function("plan", ", ".join([*given, "/"] if given else []), lines, names)


def _allocated(name: str, one: Allocation, lines: list[str], names: dict[str, Any]) -> str:
    names[f"make_{name}"] = sized_allocator(one.spec.dtype, one.spec.device)
    names[f"dtype_{name}"] = one.spec.dtype
    lines.append(f"{name} = make_{name}({_tuple(one.shape)}, {_tuple(one.strides)}, dtype_{name})")
    return name


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"
