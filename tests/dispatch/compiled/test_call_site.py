"""Calls in code that Inductor generated, of winners that it does not compile: the plan is called without a look-up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry import InvalidArgumentError
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.torch_side import operators

from ...tiers import THOROUGH
from ..torch_side.conftest import Seen
from .winners import generated

close = torch.testing.assert_close


def test_one_program_follows_everything_that_changes_the_choice(dispatcher: Dispatcher, add: Any) -> None:
    first, other = add("softmax", "a.first"), add("softmax", "a.other")
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True)
    x = torch.randn(4, 8)
    y, (code,) = generated(compiled, x)
    assert "call_site('softmax')" in code
    assert "= torch.ops.kernel_registry" not in code
    close(y, torch.softmax(x, -1))
    misses = dispatcher.bound("softmax").misses
    for _ in range(3):
        x = torch.randn(4, 8)
        close(compiled(x), torch.softmax(x, -1))
    assert (len(first.shapes), len(other.shapes)) == (4, 0)
    assert dispatcher.bound("softmax").misses == misses  # not resolved again
    assert dispatcher.explain("softmax", x).calls == 4

    with dispatcher.using(softmax="a.other"):
        close(compiled(x), torch.softmax(x, -1))
    assert (len(first.shapes), len(other.shapes)) == (4, 1)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        compiled(x)
    assert any("kernel_registry::softmax (a.first)" in event.key for event in profile.key_averages())

    unaligned = torch.randn(33)[1:].view(4, 8)
    close(compiled(unaligned), torch.softmax(unaligned, -1))
    with torch.inference_mode():
        close(compiled(x), torch.softmax(x, -1))

    seen = len(first.shapes)
    dispatcher.configure(mode="reference")
    close(compiled(x), torch.softmax(x, -1))
    assert len(first.shapes) == seen
    dispatcher.configure(mode="tuned")
    compiled(x)
    assert len(first.shapes) == seen + 1


@pytest.mark.thorough
def test_another_size_of_an_earlier_call_is_resolved_once_too(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that differ from earlier ones in sizes alone are answered without the steps of a miss."""

    class AnySize(Seen):
        any_size = True

    made = AnySize("softmax", dispatcher.catalog.op("softmax").reference, "a.any_size")
    dispatcher.register(made)
    for rows in (3, 5, 7):
        dispatcher.call("softmax", torch.randn(rows, 8))
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True, dynamic=False)
    for _ in range(2):
        compiled(torch.randn(9, 8))
    asked = []
    overload_of = operators.overload_of
    monkeypatch.setattr(operators, "overload_of", lambda name: asked.append(name) or overload_of(name))
    x = torch.randn(9, 8)
    for _ in range(3):
        close(compiled(x), torch.softmax(x, -1))
    assert asked == []


def test_a_plan_that_fails_is_put_aside_and_the_next_one_answers(dispatcher: Dispatcher, add: Any) -> None:
    first, other = add("softmax", "a.first"), add("softmax", "a.other")
    compiled = torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True)
    x = torch.randn(4, 8)
    for _ in range(2):
        compiled(x)
    first._reference = lambda *_: 1 / 0
    with pytest.warns(match=r"a\.first"):
        close(compiled(x), torch.softmax(x, -1))
    close(compiled(x), torch.softmax(x, -1))
    assert (len(first.shapes), len(other.shapes)) == (3, 2)


def test_a_mutating_op_writes_to_the_arguments_of_the_program(dispatcher: Dispatcher, add: Any) -> None:
    seen = add("fused_add_rms_norm")

    def step(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        dispatcher.call("fused_add_rms_norm", x, residual, weight)
        return x.clone()

    compiled = torch.compile(step, fullgraph=True)
    for turn in range(3):
        x, residual, weight = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
        total = x + residual
        expected = torch.nn.functional.rms_norm(total, (8,), weight, 1e-6)
        if turn == 0:
            y, (code,) = generated(compiled, x, residual, weight)
            assert "call_site('fused_add_rms_norm')" in code
        else:
            y = compiled(x, residual, weight)
        close(y, expected)
        close(x, expected)
        close(residual, total)
    assert len(seen.shapes) == 3


def test_inline_false_leaves_operators_of_torch(dispatcher: Dispatcher, add: Any) -> None:
    add("softmax")
    dispatcher.configure(inline=False)
    x = torch.randn(4, 8)
    y, (code,) = generated(torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True), x)
    close(y, torch.softmax(x, -1))
    assert "torch.ops.kernel_registry.softmax.default(" in code
    assert "call_site" not in code
    with pytest.raises(InvalidArgumentError, match=r"^configure\(inline=1\)\n  expected True or False$"):
        dispatcher.configure(inline=1)  # type: ignore[arg-type]
    assert not dispatcher.inline


@THOROUGH
def test_gradients_by_call_sites(dispatcher: Dispatcher, add: Any) -> None:
    forward, backward = add("rms_norm"), add("rms_norm_backward")
    compiled = torch.compile(lambda *args: dispatcher.call("rms_norm", *args), fullgraph=True)
    for _ in range(3):
        x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        seed = torch.randn(4, 8)
        expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)
        y = compiled(x, weight)
        close(y, expected)
        close(torch.autograd.grad(y, (x, weight), seed), torch.autograd.grad(expected, (x, weight), seed))
    assert (len(forward.shapes), len(backward.shapes)) == (3, 3)


@THOROUGH
def test_a_pass_of_the_program_is_kept(dispatcher: Dispatcher, add: Any) -> None:
    from torch._inductor import config, custom_graph_pass

    class Counting(custom_graph_pass.CustomGraphPass):
        graphs = 0

        def __call__(self, graph: torch.fx.Graph) -> None:
            self.graphs += 1

        def uuid(self) -> str:
            return "counting"

    add("softmax")
    own, x = Counting(), torch.randn(4, 8)
    with config.patch(post_grad_custom_pre_pass=own):
        _, (code,) = generated(torch.compile(lambda t: dispatcher.call("softmax", t), fullgraph=True), x)
    assert own.graphs == 1
    assert "call_site" in code
