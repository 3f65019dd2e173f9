"""The outputs of an op's calls: their form, and their shapes, dtypes and strides without any data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ..arguments.on_meta import META, OnMeta
from ..arguments.specs import quick_spec
from ..problem import Arguments, TensorSpec
from .definition_checks import definition_fault
from .fake import RowMajor

if TYPE_CHECKING:
    from .op import Op

Outputs = torch.Tensor | tuple[torch.Tensor, ...] | None
"""The outputs of a call as it returns them: one tensor, a tuple of several, or None if the schema has none."""


def as_tuple(outputs: Outputs) -> tuple[torch.Tensor, ...]:
    """A tuple of the outputs: none for None, one, or several."""
    if outputs is None:
        return ()
    return outputs if isinstance(outputs, tuple) else (outputs,)


def faked_specs(op: Op, arguments: Arguments, device: torch.device) -> dict[str, TensorSpec]:
    """Specs of a call's outputs by name: by the rule of ``op.fake``, or by ``fake`` or the reference on meta tensors.

    Raises InvalidDefinitionError for a ``fake`` that looks at data, or that returns anything but the outputs' tensors.
    """
    names = op.parsed.outputs
    if not names:
        return {}
    specs = op.fake.specs(arguments.unrecorded, device) if isinstance(op.fake, RowMajor) else None
    if specs is not None:
        return dict(zip(names, specs, strict=True))
    fake = op.fake or op.reference
    # torch's compiler, once imported, makes torch's own answers for meta tensors the quicker ones
    with OnMeta() if "torch._dynamo" not in sys.modules else nullcontext():
        outputs = _faked(op, fake, arguments)
    if len(outputs) != len(names) or not all(isinstance(tensor, torch.Tensor) for tensor in outputs):
        told = f"its fake returned {', '.join(type(tensor).__name__ for tensor in outputs) or None}"
        hint = f"expected a tensor for each of its outputs: {', '.join(names) or 'none'}"
        raise definition_fault(op, told, hint, fake)
    return {
        name: quick_spec(tensor.shape, tensor.dtype, tensor.stride(), device)
        for name, tensor in zip(names, outputs, strict=True)
    }


def _faked(op: Op, fake: Callable[..., Outputs], arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Outputs without data. Raises InvalidDefinitionError for a ``fake`` that looks at its arguments' data."""
    try:
        return as_tuple(fake(*map(_on_meta, arguments.unrecorded.values())))
    except (RuntimeError, NotImplementedError) as fault:
        if "meta tensor" not in str(fault):
            raise
        which = "fake" if op.fake is not None else "reference, which stands for a fake that it lacks,"
        told = f"its {which} looks at the data of tensors: {str(fault).splitlines()[0]}"
        hint = "give it a fake that returns empty tensors by shapes and attributes alone: x.new_empty(...)"
        raise definition_fault(op, told, hint, fake) from fault


def _on_meta(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=META)
    return tuple(map(_on_meta, value)) if isinstance(value, tuple) else value
