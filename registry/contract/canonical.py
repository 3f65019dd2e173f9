"""Other forms of a call: what callers of torch and of other libraries pass, as a call in the schema's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..author_code import at
from ..errors import InvalidDefinitionError

if TYPE_CHECKING:
    from .op import Op


@dataclass(frozen=True)
class CanonicalCall:
    """A call in the schema's terms that stands for a call in another form.

    ``values`` are its arguments by name. ``finish`` makes the caller's outputs of its own; None: they are its own.
    """

    values: Mapping[str, Any]
    finish: Callable[[Any], Any] | None = None

    def answered(self, call: Callable[..., Any]) -> Any:
        """The caller's outputs, with ``call`` to run the op."""
        outputs = call(**self.values)
        return outputs if self.finish is None else self.finish(outputs)


OtherForms = Callable[[dict[str, Any]], CanonicalCall | None]
"""``forms(given)``: the canonical call for the arguments ``given`` by name, which it may change; None for a call
that is canonical, or wrong in any form. Its code must be differentiable, and such that torch.compile can trace it."""


def canonical_call(op: Op, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> CanonicalCall | None:
    """The canonical call for a call in another form that ``op.forms`` knows; None for every other call.

    Raises InvalidArgumentError for arguments that such a form does not allow, and InvalidDefinitionError if ``forms``
    returns anything else.
    """
    names = op.parsed.names
    if op.forms is None or len(args) > len(names):
        return None
    given = dict(zip(names, args, strict=False))
    for name, value in attributes.items():
        if name in given:
            return None
        given[name] = value
    # a nested tensor has no shape
    nested = any(isinstance(value, torch.Tensor) and value.is_nested for value in given.values())
    if nested:
        return None
    found: Any = op.forms(given)
    if found is not None and not (isinstance(found, CanonicalCall) and isinstance(found.values, Mapping)):
        returned = f"CanonicalCall({found.values!r:.80})" if isinstance(found, CanonicalCall) else f"{found!r:.80}"
        raise InvalidDefinitionError(
            f"op {op.name!r}: forms() returned {returned}{at(op.forms)}",
            hint="expected a CanonicalCall of the arguments by name, or None for a call that is in the schema's terms",
        )
    return found
