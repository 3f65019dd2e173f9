"""The guard of a family of calls that differ in sizes alone; it also makes the specs of a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ...arguments.schema import Parameter, Schema, tensors_in
from ...arguments.specs import FULL_ALIGNMENT, Argument, aligned_spec, fits_int32
from ...generated_code import function
from ..torch_side.tensor_classes import KINDS
from ..torch_side.torch_private import kind_guard
from .free import free_integer, same

Specs = Callable[..., dict[str, Argument] | None]
"""``specs(*values)``: a call's values by schema name, tensors as specs; None for a call outside of the family."""


def family_of(schema: Schema, values: Sequence[Any]) -> Specs | None:
    """The guard of the family of calls that differ from this call only in the sizes of tensors and in integers.

    In the family tensors have elements and memory, are row-major and start at a multiple of 16 bytes, and autograd
    records nothing. None without a tensor, or if torch has no guard for it.
    """
    kinds = tuple([_kind(parameter, value) for parameter, value in zip(schema.parameters, values, strict=True)])
    tensors = tensors_in(values)
    check = kind_guard(tensors) if tensors else None
    if check is None:
        return None
    names: dict[str, Any] = {"check": check, "device": tensors[0].device}
    for number, tensor in enumerate(tensors):
        known = aligned_spec(tensor.shape, tensor.dtype, tensor.stride(), tensor.device)
        names |= {f"dtype{number}": tensor.dtype, f"known{number}": known}
        names |= {f"shape{number}": tensor.shape, f"strides{number}": tensor.stride()}
    for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if kind in {"free", "same"}:
            names[f"e{place}"] = free_integer(value) or value
    made: Specs = _maker(schema.names, kinds, any(tensor.requires_grad for tensor in tensors))(**names)
    return made


_Kind = str | int
"""The values of a parameter in the family: ``tensor``, ``int32``, ``free`` (any that ``free_integer`` equates with the
first), ``same`` (equal to the first), or a list of so many tensors."""


def _kind(parameter: Parameter, value: Any) -> _Kind:
    if parameter.kind == "Tensor[]":
        return len(value)
    if isinstance(value, torch.Tensor):
        return "tensor"
    if type(value) is int and fits_int32(value):
        return "int32"
    return "same" if free_integer(value) is None else "free"


@lru_cache(maxsize=1024)
def _maker(names: tuple[str, ...], kinds: tuple[_Kind, ...], grad: bool) -> Callable[..., Specs]:
    """``make(check=..., device=..., dtype0=..., e1=...)``, which returns ``specs``, 3 times as fast as a loop.

    ``grad``: a tensor requires a gradient, so that no call in grad mode is in the family.
    """
    lines, items, known, tensors = [], [], ["check", "device"], list[str]()
    strange = ["grad_enabled()"] if grad else []

    def spec(tensor: str) -> str:
        number = len(tensors)
        tensors.append(tensor)
        known.extend(f"{name}{number}" for name in ("dtype", "known", "shape", "strides"))
        # a weight mostly has the shape of the first call
        again = f"{tensor}.shape == shape{number} and {tensor}.stride() == strides{number}"
        return f"known{number} if {again} else spec({tensor}.shape, dtype{number}, {tensor}.stride(), device)"

    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        given = item = f"a{place}"
        if isinstance(kind, int):
            parts = [f"{given}_{number}" for number in range(kind)]
            lines.append(f"if type({given}) is not tuple or len({given}) != {kind}: return None")
            lines += [f"{''.join(f'{part}, ' for part in parts)} = {given}"] if parts else []
            item = f"({''.join(f'{spec(part)}, ' for part in parts)})"
        elif kind == "tensor":
            item = spec(given)
        elif kind == "int32":
            strange.append(f"type({given}) is not int or not {-(2**31)} <= {given} < {2**31}")
        else:
            known.append(f"e{place}")
            other = f"not same({given}, e{place})" if kind == "same" else f"{given} != e{place}"
            strange.append(f"{given} is not e{place} and {other}")
        items.append(f"{name!r}: {item}")
    # torch's guard ends the process when it is given a nested tensor
    strange += [f"kinds[type({one})] != 'memory' or {one}.is_nested" for one in tensors]
    strange.append(f"not check({', '.join(tensors)})")
    apart = "not (p := {0}.data_ptr()) or p & {1} or not {0}.is_contiguous()"
    strange += [apart.format(one, FULL_ALIGNMENT - 1) for one in tensors]
    lines += [*(f"if {demand}: return None" for demand in strange), f"return {{{', '.join(items)}}}"]
    lines = [f"def specs({', '.join(f'a{place}' for place in range(len(names)))}):", *(f"    {line}" for line in lines)]
    return function(
        "make",
        ", ".join(known),
        [*lines, "return specs"],
        {"kinds": KINDS, "spec": aligned_spec, "same": same, "grad_enabled": torch.is_grad_enabled, **_BUILT_IN},
    )


_BUILT_IN = {"type": type, "len": len, "tuple": tuple, "int": int}
