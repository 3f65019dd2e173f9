"""Winners by torch.compile under torch.compile: their torch code is a part of the graph, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry import Candidate
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.candidates import place_of

from ...serving import serving
from ...tiers import THOROUGH
from .winners import generated, tuned, without_comments

if TYPE_CHECKING:  # see late_imports
    from registry.dispatch.compiled.graph_pass import CompiledCalls
    from registry.dispatch.compiled.inlining import known_winner

pytestmark = pytest.mark.usefixtures("late_imports")

close = torch.testing.assert_close
SIZES = {"rows": 4, "cols": 64, "dtype": "float32"}
OPS = ("softmax", "softmax_backward", "rms_norm", "rms_norm_backward")


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    """torch.compile won each of the ops, at one size."""
    made = tuned(tmp_path / "tuning.db", dict.fromkeys(OPS, ("torch.compile", SIZES)))
    with serving(made):
        yield made
    torch._dynamo.reset()


def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6), -1) * 3


@pytest.mark.thorough
def test_a_winner_is_plain_torch_for_inductor_to_fuse(dispatcher: Dispatcher) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t) * 3, fullgraph=True)
    x = torch.randn(4, 64)
    y, (code,) = generated(compiled, x)
    close(y, torch.softmax(x, -1) * 3)
    assert ".default(" not in without_comments(code)
    assert "call_site" not in code
    assert dispatcher.explain("softmax", x).calls == 0


@THOROUGH
def test_forward_and_backward_are_plain_torch_for_inductor_to_fuse(dispatcher: Dispatcher) -> None:
    def chain(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return dispatcher.call("softmax", dispatcher.call("rms_norm", x, weight)) * 3

    compiled = torch.compile(chain, fullgraph=True)
    x, weight = torch.randn(4, 64, requires_grad=True), torch.randn(64, requires_grad=True)
    seed = torch.randn(4, 64)
    (y, grads), code = generated(lambda: ((y := compiled(x, weight)), torch.autograd.grad(y, (x, weight), seed)))
    expected = plain(x, weight)
    close(y, expected)
    close(grads, torch.autograd.grad(expected, (x, weight), seed))
    assert len(code) == 2
    assert not any(".default(" in one or "call_site" in one for one in map(without_comments, code))
    assert dispatcher.explain("softmax", x.detach()).calls == 0


def test_modes_and_failures_that_keep_a_winner_out(dispatcher: Dispatcher) -> None:
    bound, values = dispatcher.bound("softmax"), (torch.randn(4, 64), -1)
    found = known_winner(bound.op, bound.plans, values)
    assert found is not None
    assert found.name == "torch.compile"
    assert known_winner(bound.op, bound.plans, (torch.randn(5, 64), -1)) is None
    place, candidate = place_of(bound.op.arguments(values)), Candidate(found, {})
    with pytest.warns(match="it failed"):
        bound.plans.failed(place, candidate, RuntimeError("it failed"), None, bound.plans.generation)
    assert known_winner(bound.op, bound.plans, values) is None
    dispatcher.configure(mode="reference")
    assert known_winner(bound.op, bound.plans, values) is None
    dispatcher.configure(mode="verified")
    assert known_winner(bound.op, bound.plans, values) is found


def test_the_identity_of_a_graph_follows_winners_and_settings(tmp_path: Path, dispatcher: Dispatcher) -> None:
    seen = CompiledCalls()
    told = [seen.uuid()]
    seen.saw(dispatcher.catalog.op("softmax"))
    told.append(seen.uuid())
    assert seen.uuid() == told[-1]
    for settings in ({"mode": "verified"}, {"inline": False}, {"inline": True, "database": tmp_path / "none.db"}):
        dispatcher.configure(**settings)
        told.append(seen.uuid())
    with dispatcher.using(softmax="torch.native"):
        told.append(seen.uuid())
    assert len(set(told)) == len(told)


@THOROUGH
def test_a_size_that_was_not_tuned_is_called(dispatcher: Dispatcher) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t) + 1, fullgraph=True)
    x = torch.randn(5, 96)
    y, (code,) = generated(compiled, x)
    close(y, torch.softmax(x, -1) + 1)
    assert "call_site('softmax')" in code


@THOROUGH
def test_a_transposed_input_is_inlined_with_the_strides_of_the_op(dispatcher: Dispatcher) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True)
    x = torch.randn(64, 4).t()
    y, (code,) = generated(compiled, x)
    close(y, torch.softmax(x, -1))
    assert y.is_contiguous()
    assert "call_site" not in code


@THOROUGH
def test_symbolic_sizes_stay_opaque(dispatcher: Dispatcher) -> None:
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t) + 1, fullgraph=True, dynamic=True)
    x = torch.randn(4, 64)
    y, code = generated(compiled, x)
    close(y, torch.softmax(x, -1) + 1)
    assert any("torch.ops.kernel_registry.softmax.default(" in one for one in code)
    assert not any("call_site" in one for one in code)
    assert dispatcher.explain("softmax", x).calls == 1
