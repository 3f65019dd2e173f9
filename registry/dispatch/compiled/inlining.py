"""Winners by plain torch, inlined: Inductor compiles and fuses the implementation's function as a part of the graph."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...arguments.schema import tensors_in
from ...backends import InductorImplementation
from ...contract import Op
from ...device import Device
from ...errors import RegistryError
from ...problem import TensorSpec
from ..resolve.candidates import Plans, place_of
from ..resolve.resolution import choices
from . import inductor_private

_LOG = logging.getLogger(__name__)


def inline_winner(node: Node, op: Op, plans: Plans) -> bool:
    """Replace a call of ``op`` by its winner's torch code. Returns False, and changes nothing, where that is not right.

    It is right if all sizes are known, the winner of exactly this problem is compiled by torch.compile, and its code
    writes to no argument and returns tensors as the op declares them.
    """
    if op.parsed.mutates:
        return False
    values = fake_values(node, op)
    if values is None:
        return False
    traced = _winner_as_graph(op, plans, values)
    if traced is None or not _fits(traced, node.meta["val"]):
        return False
    _replace(node, traced, [arg for arg in _bound(node, op) if isinstance(arg, Node)])
    return True


def _winner_as_graph(op: Op, plans: Plans, values: tuple[Any, ...]) -> GraphModule | None:
    """The torch code of the winner; None if it has none, or none that torch can trace."""
    try:
        implementation = known_winner(op, plans, values)
    except RegistryError as fault:  # the real call tells
        _LOG.debug("%s is not inlined: %s", op.name, fault)
        return None
    if implementation is None:
        return None
    try:
        return _traced(implementation, values)
    except Exception as fault:  # a stranger's code, or what torch cannot trace: the call stays a call
        _LOG.debug("%s is not inlined: %s", op.name, fault)
        return None


def fake_values(node: Node, op: Op) -> tuple[Any, ...] | None:
    """The values of a traced call, with fake tensors; None if a size, stride or number of it is not known."""
    values = [arg.meta.get("val") if isinstance(arg, Node) else arg for arg in _bound(node, op)]
    if not is_static(values) or any(isinstance(value, list | tuple) for value in values):
        return None
    return op.parsed.coerced(values)


def is_static(values: Iterable[Any]) -> bool:
    """True if all sizes, strides and numbers of a call are known while the graph is compiled."""
    numbers: list[Any] = []
    for value in values:
        tensor = isinstance(value, torch.Tensor)
        numbers += [*value.shape, *value.stride(), value.storage_offset()] if tensor else [value]
    return not any(isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool) for one in numbers)


def _bound(node: Node, op: Op) -> list[Any]:
    """The arguments of a call in the schema's order, defaults filled in."""
    given = {**dict(zip(op.parsed.names, node.args, strict=False)), **node.kwargs}
    return [given.get(one.name, one.default) for one in op.parsed.parameters]


def known_winner(op: Op, plans: Plans, values: tuple[Any, ...]) -> InductorImplementation | None:
    """The implementation that won exactly this problem, if torch.compile compiles it and it was not put aside."""
    if plans.mode() == "reference":
        return None
    arguments = op.arguments(values)
    problem = op.pose(arguments)
    device = Device.of(tensors_in(values)[0].device)
    place = place_of(arguments)
    for choice in choices(plans.situation(problem, device), None, []):
        candidate = choice.candidate
        if candidate is None or choice.step != "exact":
            return None
        if plans.failures.find(place, candidate) is None:
            found = candidate.implementation
            strict = torch.are_deterministic_algorithms_enabled() and not found.deterministic
            return found if isinstance(found, InductorImplementation) and not strict else None
    return None


def _traced(implementation: InductorImplementation, values: tuple[Any, ...]) -> GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = tensors_in(values)

    def of_tensors(*given: torch.Tensor) -> Any:
        each = iter(given)
        return implementation.function(*[next(each) if isinstance(one, torch.Tensor) else one for one in values])

    fake_mode: Any = getattr(tensors[0], "fake_mode")  # noqa: B009  (not an attribute of every tensor)
    with fake_mode, torch.no_grad():
        # twice: only in the graph of the first does functionalize see what torch's own functions write in place
        first = make_fx(of_tensors)(*tensors)
        return make_fx(torch.func.functionalize(first), inductor_private.decompositions())(*tensors)


def _fits(traced: GraphModule, expected: Any) -> bool:
    """True if the code has no constants of its own, writes to nothing, and returns tensors like ``expected``."""
    for node in traced.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op not in {"placeholder", "call_function", "output"} or (schema is not None and schema.is_mutable):
            return False
    returned = _returned(traced)
    wanted = expected if isinstance(expected, tuple | list) else (expected,)
    return len(returned) == len(wanted) and all(
        isinstance(one, Node) and one.op == "call_function" and TensorSpec.of(one.meta["val"]) == TensorSpec.of(other)
        for one, other in zip(returned, wanted, strict=True)
    )


def _returned(traced: GraphModule) -> tuple[Any, ...]:
    (output,) = [node for node in traced.graph.nodes if node.op == "output"]
    returned = output.args[0]
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def _replace(node: Node, traced: GraphModule, tensors: list[Node]) -> None:
    graph = node.graph
    placeholders = [one for one in traced.graph.nodes if one.op == "placeholder"]
    with graph.inserting_before(node):
        made: Any = graph.graph_copy(traced.graph, dict(zip(placeholders, tensors, strict=True)))
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(made[0] if isinstance(made, tuple | list) else made)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(made[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
