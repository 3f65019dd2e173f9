"""Inductor's private API that compiled calls use: lowerings, the code of a call, and passes over graphs.

Where a part of it is missing, torch's operators stay as they are in compiled code: opaque, with the look-up inside.
Importing this module imports a part of Inductor; so it is imported only where torch.compile is used.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import custom_graph_pass
from torch._ops import OpOverload

_LOG = logging.getLogger(__name__)

_OURS = "_kernel_registry"
_CALL_SITE = f"{__package__}.call_site"
_LOWERING = (
    *("add_layout_constraint", "add_needs_realized_inputs", "fallback_handler", "get_layout_constraint_tag"),
    *("lowerings", "register_lowering", "tag_to_layout_constraint"),
)
_CONSTANTS = (bool, int, float, str, type(None))


@functools.cache
def lowerings() -> Any | None:
    """The module of Inductor's lowerings, if it has all that ``register_call`` uses; else None."""
    try:
        from torch._inductor import ir
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen
        from torch._inductor.graph import GraphLowering

        lowering: Any = importlib.import_module("torch._inductor.lowering")
    except ImportError as fault:
        _LOG.debug("compiled calls stay opaque: %s", fault)
        return None
    wanted: dict[Any, tuple[str, ...]] = {
        lowering: _LOWERING,
        ir.FallbackKernel: ("create", "codegen", "get_kernel_name"),
        PythonWrapperCodegen: ("generate_fallback_kernel",),
        GraphLowering: ("call_function",),
    }
    missing = [name for owner, names in wanted.items() for name in names if not hasattr(owner, name)]
    if missing:
        _LOG.debug("compiled calls stay opaque: this torch has no %s", ", ".join(missing))
    return None if missing else lowering


def register_call(
    overload: OpOverload[..., Any], defaults: Mapping[str, Any], define: str, name: str, wanted: Callable[[], bool]
) -> bool:
    """Let Inductor generate a call of a function of ours for ``overload``, instead of one through torch's dispatcher.

    ``define`` is an expression of the function, once for each call in a program; ``name`` begins its name there.
    ``defaults``: the schema's parameters in order, with the values of those that a call may leave out. ``wanted()`` is
    asked for each call. Returns False without the private API.
    """
    lowering = lowerings()
    if lowering is None:
        return False
    known = lowering.lowerings.get(overload)
    if hasattr(known, _OURS):
        return True
    if known is not None and not getattr(known, "_is_fallback_handler", False):
        return False  # somebody's own lowering
    try:
        _register(lowering, overload, defaults, define, name, wanted)
    except (AttributeError, TypeError, AssertionError) as fault:  # of functions with other parameters than expected
        _LOG.debug("%s stays opaque in compiled code: %s", overload, fault)
        return False
    return True


def _register(
    lowering: Any,
    overload: OpOverload[..., Any],
    defaults: Mapping[str, Any],
    define: str,
    name: str,
    wanted: Callable[[], bool],
) -> None:
    fallback = lowering.fallback_handler(overload)

    def lowered(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
        values = tuple(given.values())
        if not (wanted() and _generates_python() and _static(values)):
            return fallback(*args, **kwargs)
        return _call(overload, values, define, name)

    lowered._is_fallback_handler = True  # type: ignore[attr-defined]
    setattr(lowered, _OURS, True)
    tag = lowering.get_layout_constraint_tag(overload, with_default=True)
    lowering.add_needs_realized_inputs(overload)
    lowering.add_layout_constraint(overload, lowering.tag_to_layout_constraint(tag))
    lowering.register_lowering(overload, type_promotion_kind=None)(lowered)


def _generates_python() -> bool:
    """True if Inductor generates Python for a graph that is no part of another one."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    graph = V.graph
    return type(graph) is GraphLowering and not graph.cpp_wrapper and not getattr(graph, "fx_wrapper", False)


def _static(values: Sequence[Any]) -> bool:
    """True if all sizes, strides and numbers of a call are known."""
    import sympy

    for value in values:
        if hasattr(value, "get_size"):
            numbers = (*value.get_size(), *(value.maybe_get_stride() or ()))
            if not all(isinstance(number, int | sympy.Integer) for number in numbers):
                return False
        elif not isinstance(value, _CONSTANTS):
            return False
    return True


def _call(overload: OpOverload[..., Any], values: Sequence[Any], define: str, name: str) -> Any:
    from torch._inductor import ir
    from torch.utils import _pytree as pytree

    def wrapped(one: Any) -> Any:
        if not isinstance(one, ir.IRNode):
            return one
        return one.wrap_for_lowering() if hasattr(one, "wrap_for_lowering") else ir.TensorBox.create(one)

    return pytree.tree_map(wrapped, _kernel_class(define, name).create(overload, *values))


@functools.cache
def _kernel_class(define: str, name: str) -> Any:
    """Inductor's node for a call of an operator, which generates a call of the function instead."""
    from torch._inductor import ir

    class CallSiteKernel(ir.FallbackKernel):
        def codegen(self, wrapper: Any) -> None:
            self.python_kernel_name = f"{name}_{self.get_name()}"
            wrapper.add_import_once(f"from {_CALL_SITE} import call_site")
            wrapper.add_import_once(f"{self.python_kernel_name} = {define}")
            super().codegen(wrapper)

        def codegen_size_asserts(self, wrapper: Any) -> None:
            """Write no checks of sizes: the first call of a call site checks its outputs, and later ones are equal."""

    return CallSiteKernel


# --- passes over graphs


def add_pass(own: Any) -> None:
    """Let Inductor apply a pass when gradients have been traced: after the program's custom pass, before its own."""
    from torch._inductor import config

    given = config.post_grad_custom_pre_pass
    if given is own or (isinstance(given, tuple | list) and own in given) or getattr(given, "second", None) is own:
        return
    if given is None:
        config.post_grad_custom_pre_pass = own
    elif hasattr(custom_graph_pass, "get_custom_graph_passes"):
        config.post_grad_custom_pre_pass = (*custom_graph_pass.get_custom_graph_passes(given), own)
    else:
        config.post_grad_custom_pre_pass = _Both(given, own)


class _Both(custom_graph_pass.CustomGraphPass):
    """Two passes one after another, for versions of torch that take only one."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    def __call__(self, graph: torch.fx.Graph) -> None:
        self.first(graph)
        self.second(graph)

    def uuid(self) -> Any:
        known = self.first.uuid() if isinstance(self.first, custom_graph_pass.CustomGraphPass) else None
        return None if known is None else (known, self.second.uuid())


def decompositions() -> Any:
    """Inductor's decompositions of torch's operations, by operator."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()
