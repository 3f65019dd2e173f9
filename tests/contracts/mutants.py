"""Mutants of a contract's reference, which its tolerances must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from registry.contract import Op, as_tuple

Mutant = Callable[..., tuple[torch.Tensor, ...]]
"""A computation of an op's outputs from the schema's values in order."""

Change = Callable[[dict[str, Any]], None]
"""A change of a call's values, by name."""


def tampered(op: Op, change: Change) -> Mutant:
    """The reference on arguments that ``change`` has tampered with."""

    def compute(*values: Any) -> tuple[torch.Tensor, ...]:
        named = dict(zip(op.parsed.names, values, strict=True))
        change(named)
        return as_tuple(op.reference(*named.values()))

    return compute


def put(**changed: Any) -> Change:
    """A change to these values."""
    return lambda named: named.update(changed)
