"""The pass over the graphs that Inductor compiles: calls of ops are inlined, or made without torch's dispatcher."""

from __future__ import annotations

import operator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ...contract import Op
from ...errors import UnknownNameError
from ..torch_side import operators
from . import inductor_private
from .call_site import Callee
from .identity import identity_hash
from .inlining import inline_winner

_SOURCES = tuple(sorted(map(str, Path(__file__).parent.glob("*.py"))))
"""The code that decides what is generated: torch's caches hold only as long as it stays."""


class Inlines(Protocol):
    """The part of a Dispatcher that the pass uses."""

    @property
    def inline(self) -> bool:
        """Whether compiled code may contain winners, and call plans directly."""

    def bound(self, name: str) -> Any:
        """The bound op of that name. Raises UnknownNameError."""


class CompiledCalls(CustomGraphPass):
    """Inductor's pass of the process.

    Its identity depends on the winners, so that torch's caches of compiled code hold only as long as these.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()

    def saw(self, op: Op) -> None:
        """Note that torch traces calls of ``op`` in this process, and therefore of its backward op."""
        self._names.add(op.name)

    def __call__(self, graph: Graph) -> None:
        dispatcher = _inlining_dispatcher()
        if dispatcher is None:
            return
        for node in list(graph.nodes):
            for overload in _overloads(node):
                name = operators.name_of(overload)
                # of an op that the dispatcher lacks, the call fails as it does without torch.compile
                with suppress(UnknownNameError):
                    if name is not None:
                        _rewrite(node, overload, dispatcher.bound(name))

    def uuid(self) -> str:
        """A hash of all winners of the ops that were traced in this process, and of the settings that choose them."""
        dispatcher = _inlining_dispatcher()
        if dispatcher is None:
            return "kernel_registry: not inlined"
        return f"kernel_registry: {identity_hash(list(self._names), dispatcher.bound, _SOURCES)}"


def _inlining_dispatcher() -> Inlines | None:
    """The dispatcher that runs torch's operators, if compiled code may contain its winners."""
    dispatcher = cast("Inlines | None", operators.SERVING.dispatcher)
    return dispatcher if dispatcher is not None and dispatcher.inline else None


def _inlines() -> bool:
    return _inlining_dispatcher() is not None


def _overloads(node: Node) -> list[OpOverload[..., Any]]:
    """The operator that a node calls: its target, or the first argument of torch's operator for a mutating one."""
    return [one for one in (node.target, *node.args[:1]) if isinstance(one, OpOverload)]


def _rewrite(node: Node, overload: OpOverload[..., Any], callee: Callee) -> None:
    """Inline the winner of a call, or let Inductor generate a call of its plan."""
    if callee.checked:
        return
    forcing, _ = callee.watchers
    functional = overload is node.target and _reads_by_place(node)
    if forcing.active or not (functional and inline_winner(node, callee.op, callee.plans)):
        _call_directly(overload, callee.op)


def _reads_by_place(node: Node) -> bool:
    """True if the node returns one tensor, or if its outputs are read one by one."""
    return isinstance(node.meta.get("val"), torch.Tensor) or all(user.target is operator.getitem for user in node.users)


def _call_directly(overload: OpOverload[..., Any], op: Op) -> None:
    parameters = op.parsed.parameters
    if any(one.keyword_only or one.kind.endswith("[]") for one in parameters):
        return
    defaults = {one.name: one.default for one in parameters}
    name = f"call_{op.name.replace('::', '__')}"
    inductor_private.register_call(overload, defaults, f"call_site({op.name!r})", name, _inlines)


PASS = CompiledCalls()
"""The pass of this process."""
