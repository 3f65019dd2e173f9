"""Positions that a model counts itself need no mask in a forward without mask and cache; others need theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.forwards.counted_positions import POSITIONS, counts_positions
    from registry.integrations.transformers.forwards.layer_stacks import LayerStack

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")


def loss(model: Callable[..., Any], **given: Any) -> torch.Tensor:
    found: torch.Tensor = model(prompt(), labels=prompt(), use_cache=False, **given).loss
    return found


def compiled(model: Any, programs: list[str]) -> Any:
    """The model compiled, with the texts of its programs."""

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        programs.append(module.code)
        return module.forward

    return torch.compile(model, backend=backend, fullgraph=True)


def packed() -> torch.Tensor:
    """Positions of two sequences in each row."""
    length = prompt().shape[1]
    return torch.cat((torch.arange(4), torch.arange(length - 4))).expand(len(prompt()), -1)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["training", "evaluation"])
def test_a_compiled_forward_of_positions_that_the_model_counts_has_no_mask(way: str) -> None:
    plain, model = (tiny("llama", num_hidden_layers=1) for _ in range(2))
    programs: list[str] = []
    apply(model)
    for each in (plain, model):
        each.train(way == "training")
    torch.testing.assert_close(loss(compiled(model, programs)), loss(plain))
    assert len(programs) == 1
    assert "cumsum" not in programs[0]
    assert "bool" not in programs[0]
    assert POSITIONS.config is None


def test_sequences_that_are_packed_by_their_positions_stay_apart() -> None:
    plain, model = (tiny("llama", num_hidden_layers=1) for _ in range(2))
    programs: list[str] = []
    apply(model)
    expected = loss(plain, position_ids=packed())
    torch.testing.assert_close(loss(model, position_ids=packed()), expected)
    torch.testing.assert_close(loss(compiled(model, programs), position_ids=packed()), expected)
    assert "cumsum" in programs[0]
    assert not torch.allclose(expected, loss(plain))


def test_positions_of_packed_sequences_by_place_are_seen() -> None:
    plain, model = tiny("llama"), tiny("llama")
    apply(model)
    tokens, mask = prompt(), None
    found, expected = (each.model(tokens, mask, packed(), use_cache=False)[0] for each in (model, plain))
    torch.testing.assert_close(found, expected)


class _Halving:
    """The mix-in of a model that gives two tokens each position, if it gets none."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, **given: Any) -> Any:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None] // 2
        return super().forward(input_ids, position_ids=position_ids, **given)  # type: ignore[misc]


def test_a_model_that_counts_otherwise_gets_the_mask_of_its_positions() -> None:
    plain, model = tiny("llama"), tiny("llama")
    for each in (plain, model):
        each.model.__class__ = type("Halving", (_Halving, type(each.model)), {})
    assert not counts_positions(model.model, "layers")
    apply(model)
    torch.testing.assert_close(loss(model), loss(plain))


class _Documents:
    """The mix-in of a model whose positions begin again behind a token 9."""

    def forward(self, input_ids: Any = None, position_ids: Any = None, **given: Any) -> Any:
        if position_ids is None and input_ids is not None:
            begins = torch.nn.functional.pad(input_ids[:, :-1] == 9, (1, 0)).cumsum(-1)
            place = torch.arange(input_ids.shape[1])
            first = torch.where(begins.diff(prepend=begins[:, :1] - 1, dim=-1) != 0, place, 0).cummax(-1).values
            position_ids = place - first
        return super().forward(input_ids, position_ids=position_ids, **given)  # type: ignore[misc]


def test_a_model_that_begins_again_at_some_token_gets_the_mask_of_its_positions() -> None:
    plain, model = tiny("llama"), tiny("llama")
    for each in (plain, model):
        each.model.__class__ = type("Documents", (_Documents, type(each.model)), {})
    apply(model)
    tokens = prompt().clone()
    tokens[:, 5] = 9
    found, expected = (each(tokens, use_cache=False).logits for each in (model, plain))
    torch.testing.assert_close(found, expected)


def test_another_model_in_a_hook_has_the_mask_of_its_own_positions() -> None:
    model, plain, seen = tiny("llama"), tiny("mistral"), list[torch.Tensor]()
    apply(model)

    def other() -> torch.Tensor:
        logits: torch.Tensor = plain(prompt(), position_ids=packed(), use_cache=False).logits
        return logits

    model.model.layers[0].register_forward_hook(lambda *_: seen.append(other()))
    model(prompt(), use_cache=False)
    torch.testing.assert_close(seen[0], other())


def test_a_model_with_hooks_is_not_run_for_a_proof() -> None:
    model, seen = tiny("llama"), list[int]()
    model.model.embed_tokens.register_forward_hook(lambda *_: seen.append(1))
    apply(model)
    assert not seen


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable:FutureWarning")
def test_checkpointed_layers_are_recomputed_under_no_other_mask() -> None:
    plain, model = tiny("llama"), tiny("llama")
    apply(model)
    for each in (plain, model):
        each.train().gradient_checkpointing_enable({"use_reentrant": False})
        loss(each).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral", "mixtral", "phi3"])
def test_transformers_models_count_their_positions(family: str) -> None:
    model = tiny(family)
    apply(model)
    stack = next(module for module in model.modules() if isinstance(module, LayerStack))
    assert stack.registry_constants == "(True,)"
    restore(model)
    assert counts_positions(model.model, "layers")


def test_a_fault_of_a_forward_forgets_what_was_known() -> None:
    model = tiny("llama")
    apply(model)
    with pytest.raises(IndexError):
        model(torch.full((1, 3), 10**6), use_cache=False)
    assert POSITIONS.config is None
    assert POSITIONS.answers is None
