"""The guard of a family of calls that differ in sizes alone; it also makes the specs of a call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from ...arguments.schema import Parameter, Schema, tensors_in
from ...arguments.specs import FULL_ALIGNMENT, Arguments, MatrixLayout, TensorSpec, fits_int32
from ...generated_code import function
from ..torch_side.tensor_classes import KINDS
from ..torch_side.torch_private import kind_guard
from .free_attributes import free_integer, same

Specs = Callable[..., Arguments | None]
"""``specs(*values)``: a call's arguments, which record reads; None for a call outside of the family."""


class TensorForm(NamedTuple):
    """What the calls of a family share of a tensor: layout, alignment in bytes, ``requires_grad``, its dimensions.

    Row-major and transposed tensors have the strides that their sizes give; any other layout has equal strides.
    """

    layout: MatrixLayout
    alignment: int
    requires_grad: bool
    dimensions: int

    @classmethod
    def of(cls, tensor: torch.Tensor, spec: TensorSpec) -> TensorForm:
        return cls(spec.layout, spec.alignment, tensor.requires_grad, len(spec.shape))


class FamilyGuard(NamedTuple):
    """The guard of a family, and the forms of its tensors in the schema's order.

    ``distinct``: no tensor is missing in its calls, nor given twice.
    """

    specs: Specs
    forms: tuple[TensorForm, ...]
    distinct: bool

    @property
    def aligned(self) -> bool:
        """Whether every tensor starts at a multiple of 16 bytes."""
        return all(form.alignment == FULL_ALIGNMENT for form in self.forms)

    @property
    def row_major(self) -> bool:
        return all(form.layout == "row-major" for form in self.forms)

    @property
    def strided(self) -> bool:
        """Whether a tensor has strides that its sizes do not give, which are equal in all calls of the family."""
        return any(form.layout == "other" for form in self.forms)

    @property
    def requires_grad(self) -> bool:
        """Whether a tensor requires a gradient, which autograd records in grad mode alone."""
        return any(form.requires_grad for form in self.forms)


def family_of(schema: Schema, values: Sequence[Any], gradient: bool) -> FamilyGuard | None:
    """The guard of the family of calls that differ from this call only in the sizes of tensors and in integers.

    In the family tensors have elements and memory, and this call's layout and alignment. ``gradient``: autograd records
    the calls of the family. None without a tensor, or if torch has no guard for it.
    """
    kinds = tuple([_kind(parameter, value) for parameter, value in zip(schema.parameters, values, strict=True)])
    tensors = tensors_in(values)
    check = kind_guard(tensors) if tensors else None
    if check is None:
        return None
    names: dict[str, Any] = {"check": check, "device": tensors[0].device}
    forms = []
    for number, tensor in enumerate(tensors):
        known = TensorSpec.of(tensor)
        forms.append(TensorForm.of(tensor, known))
        names |= {f"dtype{number}": tensor.dtype, f"known{number}": known}
        names |= {f"shape{number}": tensor.shape, f"strides{number}": tensor.stride()}
    for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if kind in {"free", "same"}:
            names[f"e{place}"] = free_integer(value) or value
    specs: Specs = _maker(schema.name, schema.names, kinds, tuple(forms), gradient)(**names)
    # torch's guard refuses one tensor that is given twice
    missing = any(one.holds_tensors and value is None for one, value in zip(schema.parameters, values, strict=True))
    return FamilyGuard(specs, tuple(forms), not missing)


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


class _FamilyText:
    """The text of a family's ``specs``: its parameters, the calls that it refuses, and the specs of others.

    known    names of the values that the text is made for, parameters of its maker
    tensors  the expressions of the call's tensors, in the schema's order
    unpacks  lines that check lists and name their items
    refused  conditions under which a call is in no family like this one
    items    the items of the dict of arguments
    """

    def __init__(self, names: tuple[str, ...], kinds: tuple[_Kind, ...]) -> None:
        self.known = ["check", "device"]
        self.tensors: list[str] = []
        self.unpacks: list[str] = []
        self.refused: list[str] = []
        self.items: list[str] = []
        for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            given = f"a{place}"
            item = self._of_list(given, kind) if isinstance(kind, int) else self._of_one(given, f"e{place}", kind)
            self.items.append(f"{name!r}: {item}")

    def _of_list(self, given: str, count: int) -> str:
        parts = [f"{given}_{number}" for number in range(count)]
        self.unpacks.append(f"if type({given}) is not tuple or len({given}) != {count}: return None")
        self.unpacks += [f"{''.join(f'{part}, ' for part in parts)} = {given}"] if parts else []
        return f"({''.join(f'{self._of_tensor(part)}, ' for part in parts)})"

    def _of_one(self, given: str, expected: str, kind: str) -> str:
        if kind == "tensor":
            return self._of_tensor(given)
        if kind == "int32":
            self.refused.append(f"type({given}) is not int or not {-(2**31)} <= {given} < {2**31}")
        else:
            self.known.append(expected)
            other = f"not same({given}, {expected})" if kind == "same" else f"{given} != {expected}"
            self.refused.append(f"{given} is not {expected} and {other}")
        return given

    def _of_tensor(self, tensor: str) -> str:
        number = len(self.tensors)
        self.tensors.append(tensor)
        self.known.extend(f"{name}{number}" for name in ("dtype", "known", "shape", "strides"))
        return f"s{number}"


@lru_cache(maxsize=1024)
def _maker(
    op: str, names: tuple[str, ...], kinds: tuple[_Kind, ...], forms: tuple[TensorForm, ...], gradient: bool
) -> Callable[..., Specs]:
    """``make(check=..., device=..., dtype0=..., e1=...)``, which returns ``specs``, 3 times as fast as a loop."""
    text = _FamilyText(names, kinds)
    lines = [*text.unpacks, *(f"if {refused}: return None" for refused in _refused(text, forms, gradient))]
    for number, (tensor, form) in enumerate(zip(text.tensors, forms, strict=True)):
        lines += _spec_lines(tensor, number, form)
    lines += [
        "made = new(Arguments)",
        *_fields("made", {"op": repr(op), "gradient": gradient}),
        f"hold(made, 'unrecorded', {{{', '.join(text.items)}}})",
        "hold(made, 'seen', set())",
        "return made",
    ]
    head = f"def specs({', '.join(f'a{place}' for place in range(len(names)))}):"
    return function("make", ", ".join(text.known), [head, *(f"    {line}" for line in lines), "return specs"], _CALLED)


def _refused(text: _FamilyText, forms: tuple[TensorForm, ...], gradient: bool) -> list[str]:
    """All conditions under which a call is outside of the family, the cheapest first."""
    refused = []
    if any(form.requires_grad for form in forms):
        refused.append("not grad_enabled()" if gradient else "grad_enabled()")
    refused += text.refused
    # torch's guard ends the process when it is given a nested tensor
    refused += [f"kinds[type({one})] != 'memory' or {one}.is_nested" for one in text.tensors]
    refused.append(f"not check({', '.join(text.tensors)})")
    numbered = enumerate(zip(text.tensors, forms, strict=True))
    return [*refused, *(_other_form(one, number, form) for number, (one, form) in numbered)]


def _spec_lines(tensor: str, number: int, form: TensorForm) -> list[str]:
    """Lines that set ``s0`` to the spec of the first tensor, and so on, without a Python call for each."""
    values = {"shape": "tuple(shape)", "dtype": f"dtype{number}", "strides": "strides", "device": "device"}
    values |= {"alignment": str(form.alignment)}
    return [
        f"shape, strides = {tensor}.shape, {tensor}.stride()",
        # a weight mostly has the shape of the first call
        f"if shape == shape{number} and strides == strides{number}: s{number} = known{number}",
        "else:",
        f"    s{number} = new(TensorSpec)",
        *(f"    {line}" for line in _fields(f"s{number}", values)),
    ]


def _fields(name: str, values: Mapping[str, object]) -> list[str]:
    """Lines that set the fields of a new frozen object, in two thirds of the time of ``__dict__.update``."""
    return [f"own = {name}.__dict__", *(f"own[{field!r}] = {value}" for field, value in values.items())]


def _other_form(tensor: str, number: int, form: TensorForm) -> str:
    """Text of a condition: the tensor of this name has no memory, or another layout or alignment than ``form``."""
    bytes_ = form.alignment
    # the lowest bit of an address that is set tells the alignment
    low = f"p & {FULL_ALIGNMENT - 1}" if bytes_ == FULL_ALIGNMENT else f"p & {2 * bytes_ - 1} != {bytes_}"
    demands = [f"not (p := {tensor}.data_ptr())", low]
    if form.layout == "row-major":
        return " or ".join([*demands, f"not {tensor}.is_contiguous()"])
    demands.append(f"{tensor}.is_contiguous()")
    turned = f"{tensor}.mT.is_contiguous()"  # it makes a view, which takes a microsecond
    if form.layout == "transposed":
        usual = _transposed_strides(form.dimensions)
        return " or ".join([*demands, f"(z := {tensor}.shape) and {tensor}.stride() != {usual} and not {turned}"])
    demands.append(f"{tensor}.stride() != strides{number}")
    if form.dimensions >= 2:
        demands.append(f"(strides{number}[-2] == 1 or {tensor}.shape[-2] == 1) and {turned}")
    return " or ".join(demands)


def _transposed_strides(dimensions: int) -> str:
    """Text of a transposed tensor's strides, by its shape ``z``; a dimension of size one may have another stride."""
    sizes = [f"z[{place}]" for place in range(dimensions)]
    leading = [" * ".join(sizes[place + 1 :]) for place in range(dimensions - 2)]
    return f"({', '.join([*leading, '1', sizes[-2]])})"


_CALLED = {
    "type": type,
    "len": len,
    "tuple": tuple,
    "int": int,
    "set": set,
    "kinds": KINDS,
    "new": object.__new__,
    "hold": object.__setattr__,
    "TensorSpec": TensorSpec,
    "Arguments": Arguments,
    "same": same,
    "grad_enabled": torch.is_grad_enabled,
}
"""What the generated text calls by name."""
