"""Residual sums of layers that normalise what they add: Gemma 2's and 3's, GLM-4's and OLMo 2's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from .op_counts import OpCounts
from .tiny_models import cache_name, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers
    from torch._inductor.utils import run_and_get_code

    from registry.integrations.transformers import apply, restore
    from registry.integrations.transformers.layer_proofs import residual_form

pytestmark = pytest.mark.usefixtures("late_imports", "no_programs", "without_cpp_kernels")

PART = "residual sum with the norm that follows"
FOUR_NORMS = [
    ("gemma2", "pre_feedforward_layernorm", ("post_attention_layernorm", "post_feedforward_layernorm")),
    ("gemma3", "pre_feedforward_layernorm", ("post_attention_layernorm", "post_feedforward_layernorm")),
    ("glm4", "post_attention_layernorm", ("post_self_attn_layernorm", "post_mlp_layernorm")),
]
"""Families with the norm within a layer that follows a sum, and the norms of what is added."""


def drawn(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A small model whose norms have random weights."""
    model = tiny(family, dtype, **changes)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            with torch.no_grad():
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(dtype), alpha=0.2)
    return model


def pair(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[Any, Any]:
    """A model, and its like after ``apply``."""
    plain, applied = drawn(family, dtype, **changes), drawn(family, dtype, **changes)
    apply(applied)
    return plain, applied


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("family", "second", "of_what_is_added"), FOUR_NORMS)
def test_the_form_has_the_norms_of_what_is_added(family: str, second: str, of_what_is_added: tuple[str, str]) -> None:
    model = tiny(family)
    form = residual_form(model.model.layers[0])
    assert not isinstance(form, str)
    assert (form.before, form.attention, form.after, form.then) == (
        *(("input_layernorm",), "self_attn", of_what_is_added[:1], (second, "mlp", of_what_is_added[1])),
    )
    report = apply(model)
    norms = [f"0.{second}", "1.input_layernorm", f"1.{second}"]
    assert report.replaced[PART] == [*(f"model.layers.{name}" for name in norms), "model.norm"]
    assert not any(reason.startswith("residual sums") for reason in report.left)


def test_layers_without_a_norm_before_attention_have_one_after_the_last_sum_alone() -> None:
    model = tiny("olmo2")
    form = residual_form(model.model.layers[0])
    assert not isinstance(form, str)
    assert (form.before, form.after, form.then) == (
        *((), ("post_attention_layernorm",), ("mlp", "post_feedforward_layernorm")),
    )
    own, report = type(model.model.layers[1]), apply(model)
    assert report.replaced[PART] == ["model.norm"]
    assert report.left["residual sums: no norm follows them"] == ["model.layers.0"]
    assert type(model.model.layers[0]) is own
    restore(model)
    assert type(model.model.layers[1]) is own


def test_the_norm_of_the_last_sum_is_found_again_where_a_layer_was_put_behind() -> None:
    model = tiny("olmo2")
    apply(model)
    model.model.layers.append(tiny("olmo2").model.layers[1])
    model.config.num_hidden_layers = 3
    report = apply(model)
    assert report.replaced[PART] == ["model.norm"]
    assert report.left["residual sums: no norm follows them"] == ["model.layers.0", "model.layers.1"]
    assert [getattr(layer, "registry_next", None) for layer in model.model.layers] == [None, None, model.model.norm]


def test_a_layer_with_tensors_of_its_own_has_no_form() -> None:
    layer = tiny("gemma3").model.layers[0]

    class Scaled(type(layer)):  # type: ignore[misc]
        """Gemma 4's: what a layer returns is scaled, by 1 before the weights are loaded."""

        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            found: torch.Tensor = super().forward(hidden_states, **kwargs) * self.layer_scalar
            return found

    layer.__class__ = Scaled
    layer.register_buffer("layer_scalar", torch.ones(1))
    assert residual_form(layer) == "residual sums: its layer has tensors of its own beside its modules'"


def test_a_layer_that_writes_to_what_a_module_returns_has_no_form() -> None:
    layer = tiny("llama").model.layers[0]

    class Halved(type(layer)):  # type: ignore[misc]
        """What attention returns is scaled in place."""

        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
            attended *= 0.5
            h: torch.Tensor = hidden_states + attended
            return h + self.mlp(self.post_attention_layernorm(h))  # type: ignore[no-any-return]

    layer.__class__ = Halved
    assert isinstance(residual_form(layer), str)


@pytest.mark.parametrize(
    ("family", "norms", "sums"),
    [
        ("gemma2", 5, 4),
        ("gemma3", 5 + 4, 4),
        ("glm4", 5, 4),
        ("olmo2", 4 + 4, 1),
    ],
)
@pytest.mark.thorough
def test_a_program_adds_and_normalises_at_once(family: str, norms: int, sums: int) -> None:
    """Beside the first norm, and those of what is added: gemma3 and olmo2 have two more in attention."""
    plain, applied = pair(family)
    seen: list[torch.Tensor] = []
    for model in (plain, applied):
        # transformers' hooks are installed by the first call that needs them, which torch.compile does not trace
        with torch.no_grad():
            model(prompt(), output_hidden_states=True)
        model.model.norm.register_forward_hook(lambda _, given, normed: seen.extend((*given, normed)))
    counts = OpCounts()
    compiled = torch.compile(applied, fullgraph=True, backend=counts)
    with torch.no_grad():
        own, other = (model(prompt(), output_hidden_states=True) for model in (plain, compiled))
    # the last norm has a hook
    (called,) = counts.graphs
    assert [called[op] for op in ("rms_norm", "fused_add_rms_norm")] == [norms + 1, sums - 1]
    for one, another in zip(
        (*own.hidden_states, own.logits, *seen[:2]), (*other.hidden_states, other.logits, *seen[2:]), strict=True
    ):
        assert_close(another, one)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gemma2", "gemma3", "glm4", "olmo2"])
@pytest.mark.parametrize("static", [False, True])
def test_steps_over_a_cache_are_the_plain_models(family: str, static: bool) -> None:
    plain, applied = pair(family)
    found = []
    for model in (plain, applied):
        kind = transformers.StaticCache if static else transformers.DynamicCache
        given = {cache_name(model): kind(config=model.config, **({"max_cache_len": 32} if static else {}))}
        run = torch.compile(model, fullgraph=True, backend="aot_eager") if model is applied else model
        with torch.no_grad():
            found.append([run(tokens, **given).logits for tokens in (prompt(), *prompt()[:, :3].split(1, 1))])
    for own, other in zip(*found, strict=True):
        assert_close(other, own)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_training_adds_by_itself(family: str) -> None:
    for checkpointing, compiled in ((False, True), (True, False)):
        plain, applied = pair(family)
        counts = OpCounts()
        if checkpointing:
            applied.gradient_checkpointing_enable({"use_reentrant": True})
        run = torch.compile(applied.train(), backend=counts, fullgraph=True) if compiled else applied.train()
        for model, call in ((plain.train(), plain), (applied, run)):
            embedded = model.get_input_embeddings()(prompt()).detach().requires_grad_()
            call(inputs_embeds=embedded, labels=prompt(), use_cache=False).loss.backward()
        assert not any(one["fused_add_rms_norm"] for one in counts.graphs)
        for own, other in zip(plain.model.layers.parameters(), applied.model.layers.parameters(), strict=True):
            torch.testing.assert_close(other.grad, own.grad, atol=2e-6, rtol=2e-5)


@pytest.mark.thorough
def test_copies_and_packed_models_add_and_normalise_at_once() -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 128}
    quantizes: tuple[Any, ...] = (None, "int4")
    for quantize in quantizes:
        model = drawn("gemma2", torch.bfloat16, **sizes)
        report = apply(model, quantize=quantize)
        assert len(report.replaced[PART]) == 4
        copied = copy.deepcopy(model)
        for parameter in model.model.norm.parameters():
            parameter.data.zero_()
        counts = OpCounts()
        with torch.no_grad():
            run: Any = torch.compile(copied, fullgraph=True, backend=counts)
            found = run(prompt(), use_cache=False).logits
            expected = copied(prompt(), use_cache=False).logits
        assert counts.graphs[0]["fused_add_rms_norm"] == 4
        assert (found - expected).abs().max() < 0.03 * expected.abs().max()


@pytest.mark.thorough
def test_half_logits_of_programs_err_no_more_than_the_plain_models() -> None:
    plain, applied = pair("gemma2", torch.bfloat16)
    exact = tiny("gemma2").double()
    exact.load_state_dict({name: value.double() for name, value in plain.state_dict().items()})
    compiled = torch.compile(applied, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        right = exact(prompt()).logits
        own, other = ((model(prompt()).logits.double() - right).abs().max() for model in (plain, compiled))
    assert other < 2 * own + 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_inductor_copies_nothing_for_sums_in_place(family: str) -> None:
    plain, applied = pair(family)
    with torch.no_grad():
        found, code = run_and_get_code(torch.compile(applied, fullgraph=True), prompt(), use_cache=False)
        assert_close(found.logits, plain(prompt()).logits)
    (program,) = code
    assert program.count("call_fused_add_rms_norm_buf") == 2 * 4  # defined, and called
    assert "clone" not in program


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["gemma2", "glm4"])
def test_texts_are_those_of_the_plain_model(family: str) -> None:
    plain, applied = pair(family)
    for how in ({}, {"cache_implementation": "static"}, {"cache_implementation": "hybrid"}):
        own, other = (
            model.generate(prompt(), max_new_tokens=6, do_sample=False, **how, disable_compile=True)
            for model in (plain, applied)
        )
        assert own.tolist() == other.tolist()
