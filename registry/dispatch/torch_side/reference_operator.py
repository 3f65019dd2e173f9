"""torch's operators of gradients by reference: opaque to whatever traces, as those of kernels are.

An op's reference may read the contents of its tensors (fused_moe looks for the tokens of each expert), and torch can
trace no such code. So its gradient is an operator of its own, ``kernel_registry::fused_moe_reference_gradient``, whose
fake knows the gradients' shapes without the reference. Eager calls do without it: they call ``reference_gradient``, and
so does the trace of an op that says ``Backward.reference(inline=True)``. Only the author knows what a reference reads:
to try it costs a trace, and what one call's data let through another's may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ...arguments.lists import grouped, one_by_one
from ...contract import Op
from .reference_gradient import Gradient, Needed, reference_gradient
from .torch_private import recording_anew

SUFFIX = "_reference_gradient"
"""The end of the operator's name, after the op's."""


def has_reference_operator(op: Op) -> bool:
    """True if gradients of the op are computed by its reference, which torch does not trace, and an output has one."""
    declared = op.backward
    if declared is None or not declared.by_reference or declared.inline:
        return False
    return bool(declared.by_reference_of(op.parsed.outputs))


def define_reference_gradient(
    library: torch.library.Library, qualified_name: str, op: Op, find: Callable[[], Op]
) -> None:
    """Define the operator of the gradients of ``op``, whose own operator has that name. ``find()`` is the op that runs.

    It takes the gradients of the outputs that have one, the op's arguments in order, and a bool for each argument,
    those of lists one by one. It returns the gradients for which that is True: new tensors, row-major, of their
    arguments' dtype, and zeros where the reference does not depend on an argument.
    """
    _, _, name = qualified_name.rpartition("::")
    kernels = _GradientKernels(find)
    library.define(_schema(name, op), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(f"{name}{SUFFIX}", kernels.compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{qualified_name}{SUFFIX}", kernels.fake, lib=library)
    library.impl(f"{name}{SUFFIX}", kernels.batched, "Batched")


def reference_overload(qualified_name: str) -> OpOverload[..., Any]:
    """The operator that ``define_reference_gradient`` has defined under that name."""
    namespace, _, name = qualified_name.rpartition("::")
    found: OpOverload[..., Any] = getattr(getattr(torch.ops, namespace), f"{name}{SUFFIX}").default
    return found


def gradient_by_operator(
    overload: OpOverload[..., Any],
    op: Op,
    values: Sequence[Any],
    grads: Sequence[torch.Tensor | None],
    needed: Sequence[Needed],
) -> list[Gradient]:
    """``reference_gradient`` as one call of its operator, while torch traces."""
    assert op.backward is not None
    wanted = op.backward.by_reference_of(op.parsed.outputs)
    of_outputs = [grad for name, grad in zip(op.parsed.outputs, grads, strict=True) if name in wanted]
    needs, lengths = one_by_one(needed)
    found = iter(overload(of_outputs, *values, list(needs)))
    return list(grouped([next(found) if need else None for need in needs], lengths))


def _schema(name: str, op: Op) -> str:
    names = op.parsed.names
    given = [f"{one.kind}{'?' if one.optional else ''} {one.name}" for one in op.parsed.parameters]
    first, last = (_apart(own, names) for own in ("output_gradients", "needed"))
    return f"{name}{SUFFIX}({', '.join([f'Tensor?[] {first}', *given, f'bool[] {last}'])}) -> Tensor[]"


def _apart(name: str, names: Sequence[str]) -> str:
    return _apart(f"{name}_", names) if name in names else name


class _GradientKernels:
    """torch's kernels of the operator."""

    def __init__(self, find: Callable[[], Op]) -> None:
        self._find = find

    def compute(self, of_outputs: Sequence[torch.Tensor | None], *given: Any) -> list[torch.Tensor]:
        """Real tensors: run the reference, recorded by autograd, and differentiate it."""
        with recording_anew():
            pairs = self._gradients(of_outputs, *given)
        every, _ = one_by_one(_told(given)[0])
        return _settled(pairs, [one for one in (*every, *of_outputs) if isinstance(one, torch.Tensor)])

    def batched(self, of_outputs: Sequence[torch.Tensor | None], *given: Any) -> list[torch.Tensor]:
        """Many gradients at once (autograd's is_grads_batched): run torch's operations, which torch can batch."""
        pairs = self._gradients(of_outputs, *given)
        return [torch.zeros_like(item) if gradient is None else gradient for gradient, item in pairs]

    def _gradients(
        self, of_outputs: Sequence[torch.Tensor | None], *given: Any
    ) -> list[tuple[torch.Tensor | None, torch.Tensor]]:
        """The gradients that are needed, None where the reference does not depend on an argument, and the arguments."""
        op = self._find()
        assert op.backward is not None
        values, needs, lengths = _told(given)
        wanted = op.backward.by_reference_of(op.parsed.outputs)
        each = iter(of_outputs)
        grads = [next(each) if name in wanted else None for name in op.parsed.outputs]
        needed = [need if isinstance(need, tuple) else bool(need) for need in grouped(needs, lengths)]
        found, _ = one_by_one(reference_gradient(op, values, grads, needed))
        items, _ = one_by_one(values)
        return [(gradient, item) for gradient, item, need in zip(found, items, needs, strict=True) if need]

    def fake(self, of_outputs: Sequence[torch.Tensor | None], *given: Any) -> list[torch.Tensor]:
        """Fake and meta tensors: the form of the gradients."""
        values, needs, _ = _told(given)
        items, _ = one_by_one(values)
        return [item.new_empty(item.shape) for item, need in zip(items, needs, strict=True) if need]


def _told(given: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[bool, ...], tuple[int | None, ...]]:
    """The op's values, lists as tuples, whether the gradient of each item is needed, and the lists' lengths."""
    *values, needs = given
    every = tuple([tuple(value) if isinstance(value, list) else value for value in values])
    return every, tuple(needs), one_by_one(every)[1]


def _settled(
    pairs: Sequence[tuple[torch.Tensor | None, torch.Tensor]], given: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients as an operator returns them: dense and row-major, in memory that neither ``given`` nor another has."""
    taken = {_memory(one) for one in given}
    settled = []
    for gradient, item in pairs:
        if gradient is None:
            settled.append(item.new_zeros(item.shape))
            continue
        dense = gradient if gradient.layout == torch.strided else gradient.to_dense()
        own = dense.resolve_conj().resolve_neg().contiguous()
        # compiled code takes an operator's outputs for the beginnings of their storages, which are aligned
        if _memory(own) in taken or own.storage_offset():
            own = own.clone(memory_format=torch.contiguous_format)
        taken.add(_memory(own))
        settled.append(own)
    return settled


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
