"""A pytest plugin that applies the registry to every model of transformers once its weights are there.

It is loaded by ``-p benchmarks.conformance.applied``. A model that its class's ``__init__`` makes is applied at its
end, one that ``from_pretrained`` loads after that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from registry.integrations.transformers import apply

_depth = 0


def pytest_configure() -> None:
    """Patch transformers."""
    loaded = PreTrainedModel.from_pretrained.__func__
    PreTrainedModel.from_pretrained = classmethod(_applying(loaded))


def hook(model_class: type[Any]) -> None:
    """Apply to each model that this class's ``__init__`` makes."""
    if "__init__" in vars(model_class) and not hasattr(model_class.__init__, "applies"):
        wrapped = _around_init(model_class.__init__)
        wrapped.applies = True  # type: ignore[attr-defined]
        model_class.__init__ = wrapped


def _around_init(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        global _depth  # noqa: PLW0603  (a model within another one is applied with it)
        _depth += 1
        try:
            init(self, *args, **kwargs)
        finally:
            _depth -= 1
        _apply(self)

    return made


def _applying(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        global _depth  # noqa: PLW0603
        _depth += 1
        try:
            result = load(cls, *args, **kwargs)
        finally:
            _depth -= 1
        _apply(result[0] if isinstance(result, tuple) else result)
        return result

    return loaded


def _apply(model: Any) -> None:
    if not _depth and isinstance(model, PreTrainedModel) and not any(one.is_meta for one in model.parameters()):
        asked = model.config._attn_implementation
        # logits are what the tests read, in training too
        apply(model, fused_loss=False)
        if asked == "eager":
            # as a test asks for it, to read the weights of attention, which no other implementation returns
            model.set_attn_implementation(asked)
