"""ExactBuffers: a module whose buffers keep their dtypes, as levels and their scales must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch

from ..api import weights_changed


class ExactBuffers(torch.nn.Module):
    """A module whose buffers keep their dtypes in conversions, and that loads no state with buffers of other dtypes."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, tensor in before.items():
            now = self._buffers[name]
            if tensor is not None and now is not None and now.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(now.device)
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        errors: list[str] = rest[-1]
        for name, own in self._buffers.items():
            given = state_dict.get(prefix + name)
            # torch would convert these silently
            if isinstance(given, torch.Tensor) and own is not None and given.dtype != own.dtype:
                errors.append(f"{prefix}{name} is {given.dtype}, expected {own.dtype}")
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if not errors:
            # a captured CUDA graph reads prepared forms, and perhaps no further call makes them again
            held = (*self._buffers.values(), *self._parameters.values())
            weights_changed(*(tensor for tensor in held if tensor is not None))
