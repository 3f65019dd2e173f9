"""The pass over the graphs that Inductor compiles: calls of ops are inlined, or made without torch's dispatcher."""

from __future__ import annotations

import hashlib
import logging
import operator
import uuid
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ...contract import Op
from ...device import Device
from ...problem import canonical_json
from ..resolve.op_winners import OpWinners
from ..torch_side import operators
from . import inductor_private
from .call_site import Callee
from .inlining import inline_winner

_LOG = logging.getLogger(__name__)

_SOURCES = tuple(sorted(map(str, Path(__file__).parent.glob("*.py"))))
"""The code that decides what is generated: torch's caches hold only as long as it stays."""


class Inlines(Protocol):
    """The part of a Dispatcher that the pass uses."""

    @property
    def inline(self) -> bool:
        """Whether compiled code may contain winners, and call plans directly."""

    def bound(self, name: str) -> Any:
        """The bound op of that name."""


class CompiledCalls(CustomGraphPass):
    """Inductor's pass of the process. Its identity is that of the winners, so that torch's caches of compiled code hold
    only as long as these."""

    def __init__(self) -> None:
        self._ops: dict[str, Op] = {}

    def saw(self, op: Op) -> None:
        """Note that torch traces calls of ``op`` in this process, and therefore of its backward op."""
        self._ops[op.name] = op

    def __call__(self, graph: Graph) -> None:
        dispatcher = _inlining_dispatcher()
        if dispatcher is None:
            return
        for node in list(graph.nodes):
            for overload in _overloads(node):
                name = operators.name_of(overload)
                if name is None:
                    continue
                try:
                    _mend(node, overload, dispatcher.bound(name))
                except Exception as fault:  # of Inductor's private API, or of a plugin: the call stays opaque
                    _LOG.debug("%s stays opaque in compiled code: %s", name, fault)

    def uuid(self) -> str:
        """A hash of all winners of the ops that were traced in this process, and of the settings that choose them."""
        dispatcher = _inlining_dispatcher()
        if dispatcher is None:
            return "kernel_registry: not inlined"
        try:
            told = {name: identity_of(dispatcher.bound(name)) for name in sorted(self._with_backward())}
        except Exception as fault:  # of a plugin: nothing is to be found in a cache
            _LOG.debug("compiled code is not cached: %s", fault)
            return f"kernel_registry: {uuid.uuid4()}"
        code = get_hash_for_files(_SOURCES).hex()
        return f"kernel_registry: {hashlib.sha256(canonical_json([code, told]).encode()).hexdigest()}"

    def _with_backward(self) -> set[str]:
        names = set(self._ops)
        for op in list(self._ops.values()):
            if op.backward is not None and op.backward.op is not None:
                names.add(op.backward.op)
        return names


def _inlining_dispatcher() -> Inlines | None:
    """The dispatcher that runs torch's operators, if compiled code may contain its winners."""
    dispatcher = cast("Inlines | None", operators.SERVING.dispatcher)
    return dispatcher if dispatcher is not None and dispatcher.inline else None


def _inlines() -> bool:
    return _inlining_dispatcher() is not None


def _overloads(node: Node) -> list[OpOverload[..., Any]]:
    """The operator that a node calls: its target, or the first argument of torch's operator for a mutating one."""
    return [one for one in (node.target, *node.args[:1]) if isinstance(one, OpOverload)]


def _mend(node: Node, overload: OpOverload[..., Any], callee: Callee) -> None:
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


def identity_of(callee: Callee) -> Mapping[str, Any]:
    """Everything by which calls of an op are resolved: its winners, its implementations and the mode."""
    op, plans = callee.op, callee.plans
    devices = (Device.of("cpu"), *(Device.visible() if torch.cuda.is_initialized() else ()))
    hardware = {canonical_json(dict(device.hardware())): device for device in devices}
    return {
        "version": op.version,
        "mode": plans.mode(),
        "checked": callee.checked,
        "forced": callee.watchers[0].active > 0,
        "implementations": sorted((one.name, one.fingerprint()) for one in plans.implementations),
        "winners": {text: _winners(op, plans.winners(device)) for text, device in hardware.items()},
    }


def _winners(op: Op, found: OpWinners) -> str:
    return hashlib.sha256(_text(frozenset(found.ranking(op).items())).encode()).hexdigest()


def _text(value: Hashable) -> str:
    """``repr`` of nested tuples and sets, the same in each process: the order of a set depends on it."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    return f"{{{', '.join(sorted(map(_text, value)))}}}" if isinstance(value, frozenset) else repr(value)


PASS = CompiledCalls()
"""The pass of this process."""
