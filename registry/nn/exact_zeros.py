"""ExactZeros: a module with packed weights whose zero points are not rounded, as a conversion of the dtype would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch


class ExactZeros(torch.nn.Module):
    """A module whose float32 zero points stay so where half precision would round them: by 3 to 6e-3 of a step.

    ``zeros_beside`` gives the names of the buffers of zero points, which may be None, and of their scales. Integers
    are converted with the scales, both when the module is converted and when it loads a state.
    """

    zeros_beside: ClassVar[Mapping[str, str]]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        own = self._buffers
        before = {name: (own[name], own[scales]) for name, scales in self.zeros_beside.items()}
        beside = {name: scales.dtype for name, (_, scales) in before.items() if scales is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, (zeros, _) in before.items():
            now = own[name]
            if zeros is None or now is None or zeros.dtype != torch.float32:
                continue
            if now.dtype in (torch.float32, torch.float64):
                continue
            # integers beside float32 scales are exact in half precision, too
            if beside[name] != torch.float32 or rounds(zeros, now.dtype):
                own[name] = zeros.to(now.device)
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name in self.zeros_beside:
            own = self._buffers[name]
            if own is not None and rounds(state_dict.get(prefix + name), own.dtype):
                self._buffers[name] = torch.zeros_like(own, dtype=torch.float32)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def rounds(zeros: Any, dtype: torch.dtype) -> bool:
    """True if zero points are float32 numbers that ``dtype`` cannot hold exactly."""
    if not isinstance(zeros, torch.Tensor) or zeros.dtype != torch.float32 or zeros.is_meta:
        return False
    return not torch.equal(zeros.to(dtype).float(), zeros)
