"""A fake without operations of torch: shapes and dtypes of outputs by a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments.loaded_parameters import loaded_parameters
from ..problem import Argument, TensorSpec

Rule = Callable[..., Sequence[tuple[Sequence[int], torch.dtype]]]
"""``rule(*values)`` returns the shape and dtype of each output; a tensor among ``values`` may be a TensorSpec."""


@dataclass(frozen=True)
class RowMajor:
    """A fake for row-major outputs: a new size takes a few microseconds, with meta tensors hundreds.

    ``otherwise`` is the fake for calls with a tensor that is not row-major, if the outputs' strides depend on it.
    """

    rule: Rule
    otherwise: Callable[..., Any] | None = None

    def __call__(self, *values: Any) -> Any:
        """The outputs, uninitialised, on the device of the first tensor."""
        if self.otherwise is not None:
            return self.otherwise(*values)
        device = next(value.device for value in values if isinstance(value, torch.Tensor))
        made = tuple([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.rule(*values)])
        return made[0] if len(made) == 1 else made

    def reads(self, names: Sequence[str]) -> frozenset[str]:
        """The parameters that the code of the rule and of ``otherwise`` reads."""
        own = loaded_parameters(self.rule, names)
        return own if self.otherwise is None else own | loaded_parameters(self.otherwise, names)

    def specs(self, values: Mapping[str, Argument], device: torch.device) -> list[TensorSpec] | None:
        """Specs of the outputs; None if ``otherwise`` is needed."""
        given = values.values()
        if self.otherwise is not None and not all(one.is_contiguous for one in given if type(one) is TensorSpec):
            return None
        made = []
        for shape, dtype in self.rule(*given):  # not a comprehension, which costs another Python call
            made.append(TensorSpec.contiguous(tuple(shape), dtype, device))
        return made
