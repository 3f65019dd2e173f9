"""Gradients: autograd records the calls of an op, and runs its backward op through dispatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.compiler import is_dynamo_compiling

from ...arguments.lists import Lengths, grouped, one_by_one
from ...arguments.schema import tensors_in
from ...contract import Op, as_tuple
from ...errors import InvalidDefinitionError, UnknownNameError, UnsupportedError
from ...tracing import constant_while_tracing
from ..forcing import Forced, Forcing
from .reference_gradient import Gradient, Needed, reference_gradient
from .reference_operator import gradient_by_operator, has_reference_operator
from .states import traced_in_a_graph
from .tensor_classes import as_memory
from .torch_private import dispatch_modes, stands_for_others

PLAIN_TORCH = 'registry.configure(mode="reference") runs plain torch, which has gradients of every order'


NO_BACKWARD_HINT = f"call it under torch.no_grad(), or detach its inputs; {PLAIN_TORCH}"


def no_backward(name: str) -> str:
    """The message for a call that needs a gradient, of an op without a backward."""
    return f"{name}: an input needs a gradient, but the op has no backward"


class Bound(Protocol):
    """The part of a BoundOp that gradients use; see ``registry.dispatch.bound_op``."""

    op: Op
    gradients: CallGradients

    def flat(self, *args: Any, **attributes: Any) -> Any:
        """Run the op on the schema's arguments."""

    def traced_flat(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
        """Run the op on the schema's arguments while torch.compile traces the call."""


@dataclass(frozen=True)
class Recipe:
    """The values of a forward call that its backward op needs, by place.

    ``kept``: name and place, in the values followed by the outputs. ``silent``: the places of outputs without a
    gradient.
    """

    kept: tuple[tuple[str, int], ...]
    silent: tuple[int, ...]


class CallGradients:
    """Makes autograd record the calls of one op; ``find`` gives the bound op of a name.

    ``by_operator()``: torch's operator of gradients by the reference; None if torch's operators belong to others.
    """

    def __init__(
        self,
        op: Op,
        find: Callable[[str], Bound],
        forcing: Forcing,
        by_operator: Callable[[], OpOverload[..., Any] | None],
    ) -> None:
        self.op = op
        self.forcing = forcing
        self._find = find
        self._operator: OpOverload[..., Any] | None = None
        self._opaque = has_reference_operator(op)
        self._ready_to_trace = _definer(self, by_operator)
        self._lists = any(parameter.kind.endswith("[]") for parameter in op.parsed.parameters)

    def recording(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run`` with its call recorded."""

        def recorded(*values: Any) -> Any:
            return _Recorded.apply(self, run, None, *values)

        def recorded_lists(*values: Any) -> Any:
            # one by one, since autograd does not see tensors in a list
            items, lengths = one_by_one(values)
            return _Recorded.apply(self, run, lengths, *items)

        return recorded_lists if self._lists else recorded

    def refusal(self, values: Sequence[Any]) -> UnsupportedError | None:
        """The error for a call with these values that autograd cannot record; None if it can."""
        if self.op.backward is None:
            return UnsupportedError(no_backward(self.op.name), hint=NO_BACKWARD_HINT)
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
        """True if the gradient is computed by autograd of the op's reference."""
        return self.op.backward is not None and self.op.backward.by_reference

    @cached_property
    def backward(self) -> Bound | None:
        """The backward op; None if the gradient of each input is the output's, or is computed by the reference."""
        declared = self.op.backward
        if declared is None or declared.op is None:
            return None
        try:
            return self._find(declared.op)
        except UnknownNameError as fault:
            fault.args = (f"{self.op.name}: backward=Backward(...) at {declared.place} names an {fault}",)
            raise

    @cached_property
    def recipe(self) -> Recipe:
        """The values of a call that are kept for its backward."""
        schema, declared = self.op.parsed, self.op.backward
        if declared is not None and declared.by_reference:
            wanted = declared.by_reference_of(schema.outputs)
            silent = tuple(place for place, name in enumerate(schema.outputs) if name not in wanted)
            return Recipe(tuple((name, place) for place, name in enumerate(schema.names)) if wanted else (), silent)
        if self.backward is None:
            return Recipe((), ())
        needed = self.backward.op.parsed.names
        known = {name: len(schema.names) + place for place, name in enumerate(schema.outputs)}
        known |= {name: place for place, name in enumerate(schema.names)}
        silent = tuple(place for place, name in enumerate(schema.outputs) if f"grad_{name}" not in needed)
        return Recipe(tuple((name, known[name]) for name in needed if name in known), silent)

    def of(
        self, kept: Mapping[str, Any], grads: Sequence[torch.Tensor | None], needed: Sequence[Needed]
    ) -> list[Gradient]:
        """The gradient of each argument, None for one without; undefined where it is not ``needed``.

        The gradients of a list are one tensor that holds them one after another, or one tensor each.
        """
        if self.by_reference:
            return self._by_reference([kept[name] for name in self.op.parsed.names], grads, needed)
        if self.backward is None:
            return [(grads[0],) * len(need) if isinstance(need, tuple) else grads[0] for need in needed]
        schema, names = self.backward.op.parsed, self.op.parsed.names
        values = {f"grad_{name}": grad for name, grad in zip(self.op.parsed.outputs, grads, strict=True)} | dict(kept)
        masks = {f"need_{name}": need for name, need in zip(names, needed, strict=True)}
        for parameter in schema.parameters:
            if parameter.name not in values and parameter.name in masks:
                values[parameter.name] = _mask(masks[parameter.name], parameter.kind)
        args = [values[parameter.name] for parameter in schema.parameters if not parameter.keyword_only]
        named = {parameter.name: values[parameter.name] for parameter in schema.parameters if parameter.keyword_only}
        # compiled autograd traces the backward
        tracing = is_dynamo_compiling()
        outputs = self.backward.traced_flat(tuple(args), named) if tracing else self.backward.flat(*args, **named)
        found = dict(zip(schema.outputs, as_tuple(outputs), strict=True))
        return [found.get(f"grad_{name}") for name in names]

    def _by_reference(
        self, values: Sequence[Any], grads: Sequence[torch.Tensor | None], needed: Sequence[Needed]
    ) -> list[Gradient]:
        if self._opaque and _traced(grads, values) and self._ready_to_trace():
            assert self._operator is not None
            return gradient_by_operator(self._operator, self.op, values, grads, needed)
        return reference_gradient(self.op, values, grads, needed)

    def split(self, name: str, gradient: Gradient, shapes: Sequence[torch.Size]) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each tensor of the list ``name``. Raises InvalidDefinitionError for one of another size."""
        if not isinstance(gradient, torch.Tensor):
            return gradient or (None,) * len(shapes)
        sizes = [math.prod(shape) for shape in shapes]
        if gradient.numel() != sum(sizes):
            assert self.backward is not None
            raise InvalidDefinitionError(
                f"{self.backward.op.name}: grad_{name} has {gradient.numel()} elements, but the tensors of {name} have"
                f" {sum(sizes)} in all",
                hint="it holds the gradients of the list's tensors one after another, each row-major",
            )
        parts = gradient.flatten().split(sizes)
        return tuple([part.view(shape) for part, shape in zip(parts, shapes, strict=True)])


def _definer(gradients: CallGradients, by_operator: Callable[[], OpOverload[..., Any] | None]) -> Callable[[], bool]:
    """A function that finds the operator of gradients by the reference; False if the reference is to be traced."""

    def define() -> bool:
        gradients._operator = by_operator()
        return gradients._operator is not None

    # torch.compile cannot trace definitions of operators
    return constant_while_tracing(define)


def _traced(grads: Sequence[torch.Tensor | None], values: Sequence[Any]) -> bool:
    if is_dynamo_compiling():
        return True
    # the usual case, in less than 1 µs: the gradients of fake outputs are fake
    if not dispatch_modes() and not any(grad is not None and stands_for_others(grad) for grad in grads):
        return False
    return traced_in_a_graph(tensors_in((*grads, *values)))


def _mask(need: Needed, kind: str) -> bool | tuple[int, ...]:
    """The value of a backward op's ``need_<input>``: a bool, or for an ``int[]`` parameter 0 or 1 for each tensor."""
    each = need if isinstance(need, tuple) else (need,)
    return tuple(map(int, each)) if kind == "int[]" else any(each)


class _Recorded(torch.autograd.Function):
    """One recorded call: ``apply(gradients, run, lengths, *items)``, with lists flattened by ``one_by_one``.

    It has no setup_context, with which torch would inspect the signature at each call, 20 µs. Only functorch's
    transforms need one, and under these the reference runs.
    """

    @staticmethod
    def forward(
        ctx: Any, gradients: CallGradients, run: Callable[..., Any], lengths: Lengths | None, *items: Any
    ) -> Any:
        values = items if lengths is None else grouped(items, lengths)
        output = run(*values)
        outputs = as_tuple(output)
        recipe = gradients.recipe
        if recipe.silent:
            ctx.mark_non_differentiable(*[outputs[place] for place in recipe.silent])
        known = (*values, *outputs)
        kept, ctx.kept_lengths = one_by_one([known[place] for _, place in recipe.kept])
        tensors = {place: value for place, value in enumerate(kept) if isinstance(value, torch.Tensor)}
        ctx.save_for_backward(*tensors.values())
        ctx.gradients, ctx.places = gradients, tuple(tensors)
        ctx.attributes = {place: value for place, value in enumerate(kept) if place not in tensors}
        ctx.lengths = lengths
        ctx.shapes = None if lengths is None else [[one.shape for one in tensors_in((value,))] for value in values]
        # a GPU's backward runs in another thread, outside of the caller's with blocks
        ctx.choices = gradients.forcing.captured()
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        gradients: CallGradients = ctx.gradients
        choices: Mapping[str, Forced] = ctx.choices
        saved = [as_memory(one) for one in ctx.saved_tensors]
        grads = tuple([None if one is None else as_memory(one) for one in grads])
        kept = {**ctx.attributes, **dict(zip(ctx.places, saved, strict=True))}
        values = grouped([kept[place] for place in range(len(kept))], ctx.kept_lengths)
        named = {name: value for (name, _), value in zip(gradients.recipe.kept, values, strict=True)}
        needed = ctx.needs_input_grad[3:]
        asked = needed if ctx.lengths is None else grouped(needed, ctx.lengths)
        if gradients.backward is None and not gradients.by_reference:
            found = _items(ctx, gradients.of({}, grads, asked), asked)
        else:
            with torch.no_grad(), gradients.forcing.restored(choices):
                found = _items(ctx, gradients.of(named, grads, asked), asked)
            if torch.is_grad_enabled():
                found = _once(gradients.op, found, [*saved, *grads])
        wanted = [gradient if need else None for gradient, need in zip(found, needed, strict=True)]
        return None, None, None, *wanted


def _items(ctx: Any, found: Sequence[Gradient], needed: Sequence[Needed]) -> list[torch.Tensor | None]:
    if ctx.lengths is None:
        return [gradient for gradient in found if not isinstance(gradient, tuple)]
    items: list[torch.Tensor | None] = []
    names = ctx.gradients.op.parsed.names
    for name, gradient, need, shapes in zip(names, found, needed, ctx.shapes, strict=True):
        if isinstance(need, tuple):
            items += ctx.gradients.split(name, gradient, shapes) if any(need) else (None,) * len(need)
        else:
            assert not isinstance(gradient, tuple)
            items.append(gradient)
    return items


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again: a second derivative would silently miss a term, so it raises."""

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
