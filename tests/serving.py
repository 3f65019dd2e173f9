"""A dispatcher that runs torch.ops.kernel_registry.* within a with block, in every thread of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators


@contextmanager
def serving(dispatcher: Dispatcher) -> Iterator[None]:
    """Let this dispatcher run torch's operators in the block: gradients are computed on other threads, too."""
    former = operators.serve(dispatcher)
    try:
        yield
    finally:
        operators.serve(former)
