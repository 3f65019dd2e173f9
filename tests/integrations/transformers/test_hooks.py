"""Hooks on parts of an applied model, before apply and after it: what they see and change is what the plain model's do.

Compiled programs keep to it where a part is computed with another, or ahead of its call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ...tiers import THOROUGH
from .op_counts import OpCounts
from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers import apply

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt()).logits
    return found


def steer(layer: torch.nn.Module, inplace: Callable[[torch.Tensor], Any]) -> None:
    layer.register_forward_hook(lambda _, __, output: (inplace(output), None)[1])


def steer_input(layer: torch.nn.Module, inplace: Callable[[torch.Tensor], Any]) -> None:
    layer.register_forward_pre_hook(lambda _, args: (inplace(args[0]), None)[1])


def add(x: torch.Tensor) -> None:
    x.add_(torch.linspace(0.0, 1.0, x.shape[-1]))


def add_unseen(x: torch.Tensor) -> None:
    x.data.add_(torch.linspace(0.0, 1.0, x.shape[-1]))


HOOKS: dict[str, Callable[[Any], None]] = {
    "a layer's output": lambda model: steer(model.model.layers[0], add),
    "a layer's output past autograd": lambda model: steer(model.model.layers[0], add_unseen),
    "the last layer's output": lambda model: steer(model.model.layers[1], add),
    "a layer's input": lambda model: steer_input(model.model.layers[1], add),
    "a norm's input": lambda model: steer_input(model.model.layers[1].post_attention_layernorm, add),
    "the input of one of three products": lambda model: steer_input(model.model.layers[0].self_attn.k_proj, add),
    "one of three products": lambda model: steer(model.model.layers[0].self_attn.q_proj, add),
    "the gate": lambda model: steer(model.model.layers[0].mlp.gate_proj, add),
    "the input of up": lambda model: steer_input(model.model.layers[0].mlp.up_proj, add),
    "the activation": lambda model: steer(model.model.layers[0].mlp.act_fn, add),
}


ONE_OF_EACH = (
    {"the input of one of three products": True, "a layer's output": False, "the input of up": True},
    {"one of three products": False, "a norm's input": True, "the activation": False},
)
"""For each part that is computed with another one, or ahead of its call, a hook, and whether it is late."""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.few(3)
def test_a_hook_that_writes_in_place_changes_what_comes_after_it(hook: str, late: bool) -> None:
    model, right = hooked({hook: late})
    torch.testing.assert_close(logits(model), right, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "hooks",
    [
        *(pytest.param(hooks, id=", ".join(hooks)) for hooks in ONE_OF_EACH),
        *(pytest.param({hook: late}, marks=THOROUGH, id=f"{hook}-{late}") for hook in HOOKS for late in (False, True)),
    ],
)
@pytest.mark.thorough
def test_a_compiled_program_does_what_hooks_change_in_place(hooks: Mapping[str, bool]) -> None:
    model, right = hooked(hooks)
    step = torch.compile(model, fullgraph=True, backend=OpCounts())
    torch.testing.assert_close(logits(step), right, atol=1e-5, rtol=1e-4)


def hooked(hooks: Mapping[str, bool]) -> tuple[Any, torch.Tensor]:
    """An applied model, and the logits of the plain one with the same hooks, each of which changes them.

    hooks  names of hooks, and which of them are put in after ``apply``
    """
    plain, applied = tiny("llama"), tiny("llama")
    right = logits(plain)
    for hook in hooks:
        HOOKS[hook](plain)
        without, right = right, logits(plain)
        assert (right - without).abs().max() > 1e-3
    for hook in (hook for hook, late in hooks.items() if not late):
        HOOKS[hook](applied)
    apply(applied)
    for hook in (hook for hook, late in hooks.items() if late):
        HOOKS[hook](applied)
    return applied, right


# test_residual_sums.py has such a hook at the last layer
@THOROUGH
def test_a_hook_that_records_a_layers_output_leaves_the_next_norm_ahead() -> None:
    model, counts, seen = tiny("llama"), OpCounts(), []
    model.model.layers[0].register_forward_hook(lambda _, __, output: seen.append(output))
    apply(model)
    logits(torch.compile(model, fullgraph=True, backend=counts))
    assert len(seen) == 1
    assert [counts.graphs[0][op] for op in ("rms_norm", "fused_add_rms_norm")] == [1, 4]


@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral"])
@pytest.mark.few(1)
def test_an_activation_that_was_put_in_later_is_what_is_computed(family: str) -> None:
    plain, applied = tiny(family), tiny(family)
    without = logits(plain)
    apply(applied)
    for model in (plain, applied):
        mlp = model.model.layers[0].mlp
        holder = getattr(mlp, "experts", mlp)
        name = next(name for name in ("act_fn", "activation_fn") if hasattr(holder, name))
        setattr(holder, name, torch.nn.ReLU())
    right = logits(plain)
    assert (right - without).abs().max() > 1e-3
    torch.testing.assert_close(logits(applied), right, atol=1e-5, rtol=1e-4)
