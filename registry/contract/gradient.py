"""The declaration of an op's gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..author_code import where_called


@dataclass(frozen=True)
class Backward:
    """The backward op, and the inputs and outputs, by name, that are saved for it.

    The backward op takes ``grad_<output>``, the saved tensors by their names, and the attributes by theirs; it returns
    ``grad_<input>``. It may take ``bool need_<input>``: False if the gradient of that input is not needed, and that
    output may then be empty. ``op`` None: the gradient of every input is that of the one output, and nothing runs.

    The gradients of a list of tensors are one output, which holds them one after another, each row-major; for tensors
    of one shape, stacked. Its ``need_`` is a bool, or an ``int[]`` of 0 and 1 for each tensor.

    differentiable  outputs that have a gradient. None: those whose ``grad_<output>`` the backward op takes; by the
                    reference the first output. Other outputs, and all that are not floating, have none
    by_reference    see ``Backward.reference``
    inline          see ``Backward.reference``
    place           file and line of the author's code that made it
    """

    op: str | None
    saved: tuple[str, ...]
    differentiable: tuple[str, ...] | None = None
    by_reference: bool = False
    inline: bool = False
    place: str = field(default_factory=where_called, compare=False, repr=False, kw_only=True)

    @classmethod
    def reference(cls, differentiable: tuple[str, ...] | None = None, *, inline: bool = False) -> Backward:
        """The gradient by autograd of the op's reference, which runs once more for it on the saved inputs.

        For an op without a backward kernel of its own. Only gradients that are needed are computed. In a program of
        torch.compile the gradient is one operator, so that the reference may read the contents of its tensors.
        ``inline``: the reference is traced into such a program instead, and Inductor fuses its operations with those
        around them; it may then depend on its tensors' shapes and dtypes alone, or the program cannot be compiled.
        """
        return cls(None, (), differentiable, by_reference=True, inline=inline)

    @classmethod
    def none(cls) -> Backward:
        """No output has a gradient, e.g. since it is an index or quantised: all have ``requires_grad=False``."""
        return cls(None, (), (), by_reference=True)

    def by_reference_of(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs that have a gradient by the reference."""
        said = self.differentiable
        return outputs[:1] if said is None else tuple(name for name in outputs if name in said)
