"""Gradients: an op's tuned forward, recorded by autograd, with the op's backward op run as tuned as any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx
from torch.compiler import is_dynamo_compiling

from ...arguments.schema import tensors_in
from ...contract import Op, as_tuple
from ...errors import UnsupportedError
from ..forcing import Forced, Forcing
from .reference_gradient import reference_gradient

PLAIN_TORCH = 'registry.configure(mode="reference") runs plain torch, which has gradients of every order'


NO_BACKWARD_HINT = f"call it under torch.no_grad(), or detach its inputs; {PLAIN_TORCH}"


def no_backward(name: str) -> str:
    """What a call of an op without a backward is told that autograd would have to record."""
    return f"{name}: an input needs a gradient, but the op has no backward"


class Runs(Protocol):
    """A bound op, as a backward needs it."""

    op: Op

    def flat(self, *args: Any, **attributes: Any) -> Any:
        """Run it on arguments in the schema's own terms."""
        ...

    def traced_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """What torch.compile is to see of such a call."""
        ...


@dataclass(frozen=True)
class Recipe:
    """What a backward op needs of one call of its forward, by place.

    ``kept``: name and place, among the values or after them among the outputs. ``silent``: outputs that no gradient
    comes back for.
    """

    kept: tuple[tuple[str, int], ...]
    silent: tuple[int, ...]


class Gradients:
    """Makes autograd record the calls of one op; ``find`` gives the bound op of a name."""

    def __init__(self, op: Op, find: Callable[[str], Runs], forcing: Forcing) -> None:
        self.op = op
        self.forcing = forcing
        self._find = find

    def recording(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run`` with its call recorded."""

        def recorded(*values: Any) -> Any:
            return _Recorded.apply(self, run, *values)

        return recorded

    def refusal(self, values: Sequence[Any]) -> UnsupportedError | None:
        """Why autograd cannot record a call with these values, if it cannot."""
        if self.op.backward is None:
            return UnsupportedError(no_backward(self.op.name), hint=NO_BACKWARD_HINT)
        if lists := [name for name, value in zip(self.op.parsed.names, values, strict=True) if _needed_in_list(value)]:
            return UnsupportedError(
                f"{self.op.name}: a tensor of the list {lists[0]} needs a gradient, which only tensors by name get",
                hint=f"pass detached tensors; {PLAIN_TORCH}",
            )
        if self.backward is None:
            return None
        computed = self.backward.op.parsed.outputs
        for name, value in zip(self.op.parsed.names, values, strict=True):
            if f"grad_{name}" not in computed and any(tensor.requires_grad for tensor in tensors_in((value,))):
                return UnsupportedError(
                    f"{self.op.name}: {name} needs a gradient, which {self.backward.op.name} does not compute",
                    hint=f"pass {name}.detach(); {PLAIN_TORCH}",
                )
        return None

    @property
    def by_reference(self) -> bool:
        """True if the gradient is that of the op's reference, by autograd."""
        return self.op.backward is not None and self.op.backward.by_reference

    @cached_property
    def backward(self) -> Runs | None:
        """The backward op; None when the gradient of every input is that of the output, or the reference's."""
        declared = self.op.backward
        return None if declared is None or declared.op is None else self._find(declared.op)

    @cached_property
    def recipe(self) -> Recipe:
        """What to keep of a call."""
        schema, declared = self.op.parsed, self.op.backward
        if declared is not None and declared.by_reference:
            wanted = declared.differentiable_of(schema.outputs)
            silent = tuple(place for place, name in enumerate(schema.outputs) if name not in wanted)
            return Recipe(tuple((name, place) for place, name in enumerate(schema.names)), silent)
        if self.backward is None:
            return Recipe((), ())
        needed = self.backward.op.parsed.names
        known = {name: len(schema.names) + place for place, name in enumerate(schema.outputs)}
        known |= {name: place for place, name in enumerate(schema.names)}
        silent = tuple(place for place, name in enumerate(schema.outputs) if f"grad_{name}" not in needed)
        return Recipe(tuple((name, known[name]) for name in needed if name in known), silent)

    def of(
        self, kept: Mapping[str, Any], grads: Sequence[torch.Tensor | None], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """The gradient of every argument, None for one that has none; those that are not ``needed`` may be anything."""
        if self.by_reference:
            return reference_gradient(self.op, [kept[name] for name in self.op.parsed.names], grads, needed)
        if self.backward is None:
            return [grads[0] if parameter.kind == "Tensor" else None for parameter in self.op.parsed.parameters]
        schema = self.backward.op.parsed
        values = {f"need_{name}": need for name, need in zip(self.op.parsed.names, needed, strict=True)}
        values |= {f"grad_{name}": grad for name, grad in zip(self.op.parsed.outputs, grads, strict=True)} | dict(kept)
        args = [values[parameter.name] for parameter in schema.parameters if not parameter.keyword_only]
        named = {parameter.name: values[parameter.name] for parameter in schema.parameters if parameter.keyword_only}
        # compiled autograd traces what a backward does
        tracing = is_dynamo_compiling()
        outputs = self.backward.traced_flat(tuple(args), named) if tracing else self.backward.flat(*args, **named)
        found = dict(zip(schema.outputs, as_tuple(outputs), strict=True))
        return [found.get(f"grad_{name}") for name in self.op.parsed.names]


def _needed_in_list(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) and any(tensor.requires_grad for tensor in tensors_in((value,)))


class _Recorded(torch.autograd.Function):
    """One recorded call: ``apply(gradients, run, *values)``.

    Without a setup_context, which makes torch inspect the signature at each call: 20 µs. Only functorch's transforms
    need one, and under these the reference runs.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Gradients, run: Callable[..., Any], *values: Any) -> Any:
        output = run(*values)
        outputs = as_tuple(output)
        recipe = gradients.recipe
        if recipe.silent:
            ctx.mark_non_differentiable(*[outputs[place] for place in recipe.silent])
        known = (*values, *outputs)
        kept = {name: known[place] for name, place in recipe.kept}
        tensors = {name: value for name, value in kept.items() if isinstance(value, torch.Tensor)}
        ctx.save_for_backward(*tensors.values())
        ctx.gradients, ctx.names = gradients, tuple(tensors)
        ctx.attributes = {name: value for name, value in kept.items() if name not in tensors}
        # a GPU's backward runs on a thread of its own, where no with block of the caller is open
        ctx.choices = gradients.forcing.captured()
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        gradients: Gradients = ctx.gradients
        choices: Mapping[str, Forced] = ctx.choices
        tensors = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        needed = ctx.needs_input_grad[2:]
        if gradients.backward is None and not gradients.by_reference:
            return None, None, *_wanted(ctx, gradients.of({}, grads, needed))
        with torch.no_grad(), gradients.forcing.restored(choices):
            found = gradients.of({**ctx.attributes, **tensors}, grads, needed)
        if torch.is_grad_enabled():
            found = _once(gradients.op, found, [*tensors.values(), *grads])
        return None, None, *_wanted(ctx, found)


def _wanted(ctx: Any, found: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    return [gradient if needed else None for gradient, needed in zip(found, ctx.needs_input_grad[2:], strict=True)]


class _Once(torch.autograd.Function):
    """Gradients that may be used, but not differentiated again: that must not silently leave out a term."""

    @staticmethod
    def forward(ctx: FunctionCtx, op: Op, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.op = op  # type: ignore[attr-defined]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_grads: Any) -> Any:
        raise UnsupportedError(
            f"{ctx.op.name}: its gradient was differentiated again, which "
            f"{ctx.op.backward.op or 'Backward.reference()'} has no backward for",
            hint=PLAIN_TORCH,
        )


def _once(
    op: Op, found: list[torch.Tensor | None], sources: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    gradients = [gradient for gradient in found if gradient is not None]
    tied = [source for source in sources if source is not None and source.requires_grad]
    if not gradients or not tied:
        return found
    guarded = iter(_Once.apply(op, len(gradients), *gradients, *tied))
    return [None if gradient is None else next(guarded) for gradient in found]
