"""Residual sums with the norms that follow them: where layers allow it, in compiled programs without gradients."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from .op_counts import OpCounts
from .tiny_models import prompt, tiny

if TYPE_CHECKING:  # see late_imports
    from torch._inductor.utils import run_and_get_code

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.layer_proofs import hands_on, residual_form

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")

PART = "residual sum with the norm that follows"
NORMS = ["0.post_attention_layernorm", "1.input_layernorm", "1.post_attention_layernorm"]


def logits(model: Any, **how: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt(), **how).logits
    return found


@pytest.mark.thorough
def test_every_sum_but_none_before_the_first_norm_is_one_op_with_its_norm() -> None:
    plain, applied, counts = tiny("llama"), tiny("llama"), OpCounts()
    assert apply(applied).replaced[PART] == [*(f"model.layers.{name}" for name in NORMS), "model.norm"]
    seen, recorded = list[torch.Tensor](), list[torch.Tensor]()
    for model in (plain, applied):
        model.model.layers[1].input_layernorm.register_forward_hook(lambda _, __, normed: seen.append(normed))
        model.model.layers[1].register_forward_hook(lambda _, __, output: recorded.append(output))
        # hooks are installed by the first call that needs them, which torch.compile does not trace
        logits(model, output_hidden_states=True)
    seen.clear()
    recorded.clear()
    compiled = torch.compile(applied, fullgraph=True, backend=counts)
    with torch.no_grad():
        own, other = (model(prompt(), output_hidden_states=True) for model in (plain, compiled))
    assert len(recorded) == 2
    # a norm with a hook is computed by its module; the one after a layer with a hook that records is not
    assert [counts.graphs[0][op] for op in ("rms_norm", "fused_add_rms_norm")] == [2, 3]
    for one, another in zip(
        (*own.hidden_states, own.logits, seen[0]), (*other.hidden_states, other.logits, seen[1]), strict=True
    ):
        torch.testing.assert_close(another, one, atol=1e-5, rtol=1e-4)


@pytest.mark.thorough
def test_eager_code_training_and_restored_models_add_by_themselves() -> None:
    plain, applied = (tiny("llama", num_hidden_layers=1) for _ in range(2))
    counts = OpCounts()
    apply(applied)
    torch.testing.assert_close(logits(applied), logits(plain), atol=1e-5, rtol=1e-4)
    compiled = torch.compile(applied, fullgraph=True, backend=counts)
    for model in (plain, compiled):
        model(prompt(), labels=prompt(), use_cache=False).loss.backward()
    assert [counts.graphs[0][op] for op in ("rms_norm", "fused_add_rms_norm")] == [3, 0]
    for own, other in zip(plain.parameters(), applied.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, atol=2e-6, rtol=2e-5)
    own_layer, own_model = type(plain.model.layers[0]), type(plain.model)
    restore(applied)
    assert type(applied.model.layers[0]) is own_layer
    assert type(applied.model) is own_model


def test_layers_of_another_form_stay_with_the_reason() -> None:
    model = tiny("llama")
    own = type(model.model.layers[1])

    class Scaled(own):  # type: ignore[valid-type, misc]
        """Granite's: what is added is scaled."""

        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            residual = hidden_states
            hidden_states, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
            h: torch.Tensor = residual + 0.5 * hidden_states
            return h + self.mlp(self.post_attention_layernorm(h))  # type: ignore[no-any-return]

    model.model.layers[1].__class__ = Scaled
    before, report = logits(model), apply(model)
    (reason,) = [reason for reason in report.left if reason.startswith("residual sums")]
    assert reason == (
        "residual sums: its layer is none of the form x + attention(norm(x)), then x + mlp(norm(x)),"
        " with norms of what is added or without"
    )
    assert report.left[reason] == ["model.layers.1"]
    assert report.replaced[PART] == ["model.layers.0.post_attention_layernorm"]
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-4)


def test_sums_in_another_dtype_than_the_layers_are_another_form() -> None:
    layer = tiny("llama", torch.bfloat16).model.layers[0]

    class Wide(type(layer)):  # type: ignore[misc]
        """The residual stream is in float32 within the layer."""

        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            x = hidden_states.float()
            h = x + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
            y: torch.Tensor = h + self.mlp(self.post_attention_layernorm(h.to(hidden_states.dtype)))
            return y.to(hidden_states.dtype)

    layer.__class__ = Wide
    assert isinstance(residual_form(layer), str)
    assert not isinstance(residual_form(layer.float()), str)


@pytest.mark.thorough
def test_layers_may_stand_in_several_places() -> None:
    plain, applied = tiny("llama"), tiny("llama")
    for model in (plain, applied):
        model.model.layers[1] = model.model.layers[0]
    apply(applied)
    counts = OpCounts()
    found = logits(torch.compile(applied, fullgraph=True, backend=counts), use_cache=False)
    torch.testing.assert_close(found, logits(plain, use_cache=False), atol=1e-5, rtol=1e-4)
    # of four sums the two at the end of the layer with two places are not computed with the norm of the next
    assert counts.graphs[0]["fused_add_rms_norm"] == 2


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_layer_that_was_put_in_later_is_replaced_by_another_apply(compiled: bool) -> None:
    plain, applied, counts = tiny("llama"), tiny("llama"), OpCounts()
    apply(applied)
    applied.model.layers[1] = copy.deepcopy(plain.model.layers[1])
    applied.model.layers[1].self_attn.config = applied.config
    added = apply(applied).replaced[PART]
    assert sorted(added) == [
        "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm", "model.norm",
    ]  # fmt: skip
    step = torch.compile(applied, fullgraph=True, backend=counts) if compiled else applied
    torch.testing.assert_close(logits(step), logits(plain), atol=1e-5, rtol=1e-4)
    assert [one["fused_add_rms_norm"] for one in counts.graphs] == [4] * compiled
    assert str(apply(applied)) == "nothing to replace"


@pytest.mark.parametrize("family", ["qwen3", "phi3", "mixtral", "deepseek_v3"])
def test_a_form_is_found_by_what_layers_call(family: str) -> None:
    form = residual_form(tiny(family).model.layers[0])
    assert not isinstance(form, str)
    assert (form.before, form.attention, form.after, form.then) == (
        *(("input_layernorm",), "self_attn", (), ("post_attention_layernorm", "mlp")),
    )
    assert form.tuples
    assert form.dropouts == (("resid_attn_dropout", "resid_mlp_dropout") if family == "phi3" else ())


class Stack(torch.nn.Module):
    """Layers, and what is done to their outputs."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
        self.norm, self.between = torch.nn.RMSNorm(8), between

    def forward(self, inputs_embeds: torch.Tensor, use_cache: bool = True) -> torch.Tensor:
        for layer in self.layers:
            inputs_embeds = self.between(layer(inputs_embeds))
        normed: torch.Tensor = self.norm(inputs_embeds)
        return normed


def test_a_model_hands_on_what_its_layers_return_or_something_else() -> None:
    assert hands_on(Stack(lambda x: x), "layers", "norm")
    for between in (lambda x: 2 * x, lambda x: x.add_(1.0), lambda x: (x,)):
        assert not hands_on(Stack(between), "layers", "norm")


@pytest.mark.thorough
def test_layers_that_are_compiled_one_by_one_compute_no_norm_of_another() -> None:
    plain, applied, counts = tiny("llama"), tiny("llama"), OpCounts()
    apply(applied)
    for layer in applied.model.layers:
        layer.compile(fullgraph=True, backend=counts)
    torch.testing.assert_close(logits(applied), logits(plain), atol=1e-5, rtol=1e-4)
    assert {(one["rms_norm"], one["fused_add_rms_norm"]) for one in counts.graphs} == {(1, 1)}


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral"])
def test_inductor_copies_nothing_for_sums_in_place(family: str) -> None:
    plain, applied = tiny(family), tiny(family)
    apply(applied)
    with torch.no_grad():
        found, code = run_and_get_code(torch.compile(applied, fullgraph=True), prompt(), use_cache=False)
    torch.testing.assert_close(found.logits, logits(plain), atol=1e-5, rtol=1e-4)
    (program,) = code
    assert program.count("call_fused_add_rms_norm_buf") == 2 * 4  # defined, and called
    assert "clone" not in program


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_reentrant_checkpoints_have_the_plain_gradients() -> None:
    plain, applied = tiny("llama"), tiny("llama")
    apply(applied)
    applied.gradient_checkpointing_enable({"use_reentrant": True})
    for model in (plain, applied):
        embedded = model.get_input_embeddings()(prompt()).detach().requires_grad_()
        model.train()(inputs_embeds=embedded, labels=prompt(), use_cache=False).loss.backward()
    for own, other in zip(plain.model.layers.parameters(), applied.model.layers.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad, atol=2e-6, rtol=2e-5)
