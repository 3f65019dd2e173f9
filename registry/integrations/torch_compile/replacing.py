"""The pass that puts the registry's operators in the place of torch's functions, before gradients are traced.

Then autograd, fake tensors and Inductor see an operator as if the program had called it, and the pass of
``registry.dispatch.compiled`` inlines it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import codecache, config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from ...arguments.schema import tensors_in
from ...contract import Op, as_tuple
from ...dispatch.compiled.identity import identity_hash
from ...dispatch.compiled.inlining import is_static
from ...dispatch.torch_side import operators
from ...errors import UnsupportedError
from ...problem import TensorSpec
from .evidence import reason_to_leave
from .patterns import OPS, Match, NotTheOp, match, tensor_of


@dataclass
class Replacements:
    """``replaced``: numbers of replaced calls by op and shapes; ``left``: of others, by op, shapes and reason.

    ``cached``: graphs that came from torch's caches as they were once compiled. Their calls are in neither number.
    """

    replaced: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    cached: int = 0

    def __str__(self) -> str:
        lines = [f"replaced  {count} x {what}" for what, count in self.replaced.items()]
        lines += [f"left      {count} x {what}" for what, count in self.left.items()]
        if self.cached:
            graphs = "graph" if self.cached == 1 else "graphs"
            lines.append(f"cached    {self.cached} {graphs} of torch's caches, with what was replaced when compiled")
        return "\n".join(lines) or "nothing was compiled"


_SOURCES = tuple(sorted(map(str, Path(__file__).parent.glob("*.py"))))
"""The code that decides what is replaced: torch's caches hold only as long as it stays."""


class Replacing(CustomGraphPass):
    """Inductor's pass over the graphs that Dynamo captured."""

    def __init__(self) -> None:
        self.ops: frozenset[str] = frozenset(OPS)
        self.training = False

    def __call__(self, graph: Graph) -> None:
        autocast = torch._C._is_any_autocast_enabled() or any(_enters_autocast(node) for node in graph.nodes)
        changed = False
        for node in list(graph.nodes):
            try:
                found = match(node)
            except NotTheOp as why:
                _count(REPLACEMENTS.left, f"{node.name}: {why}")
                continue
            if found is None or found.op not in self.ops:
                continue
            shown = f"{found.op}({', '.join(_shown(arg) for arg in found.args if isinstance(arg, Node))})"
            reason = "autocast converts its arguments" if autocast else self._replace(found)
            if reason:
                _count(REPLACEMENTS.left, f"{shown}: {reason}")
            else:
                _count(REPLACEMENTS.replaced, shown)
                changed = True
        if changed:
            graph.eliminate_dead_code()
            graph.lint()

    def uuid(self) -> str:
        """A hash of all winners of the ops that may be replaced and of their backward ops, and of their evidence."""
        bound = operators.serving_dispatcher().bound
        return identity_hash(self.ops, bound, _SOURCES, sorted(self.ops), self.training)

    def _replace(self, found: Match) -> str:
        """Replace the call; returns why it stays, "" if it was replaced."""
        bound: Any = operators.serving_dispatcher().bound(found.op)
        op: Op = bound.op
        fakes = tuple([tensor_of(arg) if isinstance(arg, Node) else arg for arg in found.args])
        if not is_static(fakes):
            return "its sizes vary"
        tensors = tensors_in(fakes)
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors) and not self.training:
            return "it needs a gradient: enable(training=True)"
        more = [one.default for one in op.parsed.parameters[len(fakes) :]]
        given = tuple([_swapped(one) for one in fakes]) if found.swapped else fakes
        if reason := reason_to_leave(op, bound.plans, (*given, *more)):
            return reason
        return _put(found, op, (*given, *more))


def _put(found: Match, op: Op, values: tuple[Any, ...]) -> str:
    """Put the operator into the graph; returns why it cannot be there."""
    overload = operators.define(op)
    graph, node = found.node.graph, found.node
    expected = tensor_of(node)
    fake_mode: Any = getattr(tensors_in(values)[0], "fake_mode", None)
    if fake_mode is None:
        return "its tensors are not those of a trace"
    with fake_mode, torch.no_grad():
        output = as_tuple(overload(*values))[0]
    output = _swapped(output) if found.swapped else output
    if TensorSpec.of(output.detach()) != TensorSpec.of(expected.detach()):
        return f"the op returns {TensorSpec.of(output)}, torch {TensorSpec.of(expected)}"
    with graph.inserting_before(node):
        args = [_swapped_node(graph, arg) if found.swapped else arg for arg in found.args]
        made = graph.call_function(overload, tuple(args))
        if len(op.parsed.outputs) > 1:
            made = graph.call_function(operator.getitem, (made, 0))
        if found.swapped:
            made = graph.call_method("transpose", (made, 1, 2))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return ""


def _swapped(value: Any) -> Any:
    return value.transpose(1, 2) if isinstance(value, torch.Tensor) else value


def _swapped_node(graph: Graph, value: Any) -> Any:
    return graph.call_method("transpose", (value, 1, 2)) if isinstance(value, Node) else value


def _enters_autocast(node: Node) -> bool:
    return node.target is torch.amp.autocast_mode._enter_autocast


def _shown(node: Node) -> str:
    tensor = node.meta.get("example_value")
    return "x".join(map(str, tensor.shape)) if isinstance(tensor, torch.Tensor) else "?"


def _count(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


# --- in torch's configuration

REPLACEMENTS = Replacements()
_PASS = Replacing()


class _CacheHits:
    """Counts the graphs that torch takes from its caches without the pass, while that is installed."""

    def __init__(self) -> None:
        self._before: int | None = None
        self._counted = 0

    def begin(self) -> None:
        if self._before is None:
            self._before = _hits()

    def end(self) -> None:
        self._counted, self._before = self.count(), None

    def count(self) -> int:
        if self._before is None or not _runs_late():
            return self._counted
        hits = _hits()
        # a program may have cleared torch's counters
        return self._counted + hits - (self._before if hits >= self._before else 0)


_CACHE_HITS = _CacheHits()


def install(ops: frozenset[str], training: bool) -> None:
    """Let Inductor apply the pass. Raises UnsupportedError if the program has such a pass of its own."""
    given = config.pre_grad_custom_pass
    if given is not None and given is not _PASS:
        raise UnsupportedError(
            "torch_compile.enable: torch._inductor.config.pre_grad_custom_pass is set already",
            hint="it takes one pass: call torch_compile's from yours, or leave yours out",
        )
    _PASS.ops, _PASS.training = ops, training
    config.pre_grad_custom_pass = _PASS
    _CACHE_HITS.begin()


def uninstall() -> None:
    """Undo ``install``."""
    if config.pre_grad_custom_pass is _PASS:
        _CACHE_HITS.end()
        config.pre_grad_custom_pass = None


def replacements() -> Replacements:
    """The replacements of this process so far."""
    REPLACEMENTS.cached = _CACHE_HITS.count()
    return REPLACEMENTS


def _hits() -> int:
    return int(counters["aot_autograd"]["autograd_cache_hit"])


def _runs_late() -> bool:
    """Whether torch looks into its caches before it runs the pass, as versions do that know when a pass may run."""
    timing: Any = getattr(codecache, "resolve_pre_grad_pass_timing", None)
    return timing is not None and timing() == "late"
