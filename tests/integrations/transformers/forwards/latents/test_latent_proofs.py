"""Which attention modules are replaced: those that expand and hand on latents as mla_decode needs them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import RegistryError

from ...tiny_models import CONFIGS, LATENT, tiny
from .decoding import PART, decoded, dynamic, filled, padded, steps

if TYPE_CHECKING:  # see late_imports
    import accelerate
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    from registry.integrations.transformers import apply, restore

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def left_of(model: Any) -> str:
    """Why its attention is left; the model computes what it did."""
    right = steps(model, filled(model, dynamic(model)), count=2)
    report = apply(model)
    (told,) = (reason for reason in report.left if reason.startswith(PART))
    assert not any(part.startswith(PART) for part in report.replaced)
    with decoded() as calls:
        close(steps(model, filled(model, dynamic(model)), count=2), right)
    assert calls == []
    return told.removeprefix(f"{PART}: ")


def test_another_expansion_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    own = DeepseekV3Attention.expand_kv
    monkeypatch.setattr(DeepseekV3Attention, "expand_kv", lambda self, a, b: own(self, a, 2 * b))
    assert left_of(tiny("deepseek_v3")).startswith("it computes something else: an error of")


def test_attention_that_changes_keys_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as file

    own = file.ALL_ATTENTION_FUNCTIONS

    class Scaled:
        """The functions of attention, which get other keys."""

        def get_interface(self, *given: Any) -> Any:
            function = own.get_interface(*given)
            return lambda module, q, k, *others, **named: function(module, q, 2 * k, *others, **named)

    monkeypatch.setattr(file, "ALL_ATTENTION_FUNCTIONS", Scaled())
    assert left_of(tiny("deepseek_v3")) == "it does not hand on to attention what it has cached as it is"


def test_layers_of_other_kinds_and_widths_are_left() -> None:
    model = tiny("deepseek_v3", num_hidden_layers=1)
    attention = model.model.layers[0].self_attn
    own = attention.kv_b_proj
    attention.kv_b_proj = torch.nn.Linear(16, 128)
    assert left_of(model) == "its kv_b_proj is a Linear, expected a linear layer without bias"
    model = tiny("deepseek_v3", num_hidden_layers=1)
    model.model.layers[0].self_attn.kv_b_proj = torch.nn.Sequential(own)
    assert left_of(model) == "its kv_b_proj is a Sequential, expected a linear layer without bias"
    model = tiny("deepseek_v3", num_hidden_layers=1)
    model.model.layers[0].self_attn.kv_lora_rank = 0
    model.set_attn_implementation("registry")
    report = apply(model)
    assert f"{PART}: it does not tell the widths of its latents" in report.left
    model = tiny("deepseek_v3", num_hidden_layers=1)
    model.model.layers[0].self_attn.v_head_dim = 17
    model.set_attn_implementation("registry")
    report = apply(model)
    assert f"{PART}: its kv_b_proj is 128 by 16, and its latents have other widths" in report.left


def with_indexer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model of DeepSeek-V3.2, whose attention chooses keys."""
    indexer = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
    monkeypatch.setitem(LATENT, "deepseek_v32", ("DeepseekV32Config", {**CONFIGS["deepseek_v3"][1], **indexer}))
    return tiny("deepseek_v32", num_hidden_layers=1)


def test_attention_that_chooses_keys_by_an_indexer_stays_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_indexer(monkeypatch)
    right = steps(model, filled(model, dynamic(model)), count=2)
    (reason,) = (each for each in apply(model).left if each.startswith("attention"))
    assert reason == "attention: it reads masks, which the registry's function makes only where some are needed"
    assert model.config._attn_implementation == "eager"
    close(steps(model, filled(model, dynamic(model)), count=2), right)


def test_attention_that_cannot_be_run_stays_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_indexer(monkeypatch)
    right = steps(model, filled(model, dynamic(model), padded()), padded())
    accelerate.cpu_offload(model, execution_device="cpu")
    (reason,) = (each for each in apply(model).left if each.startswith("attention"))
    assert reason == "attention: its own forward, without a mask: its weights are not loaded"
    # the registry's function would attend to all keys
    assert torch.equal(steps(model, filled(model, dynamic(model), padded()), padded()), right)


def test_keys_that_an_indexer_chooses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_indexer(monkeypatch)
    model.set_attn_implementation("registry")
    with pytest.raises(RegistryError, match="attention over keys that an indexer chooses"):
        filled(model, dynamic(model), padded())


def test_a_forward_that_another_program_has_put_on_a_module_is_left() -> None:
    model = tiny("deepseek_v3", num_hidden_layers=1)
    attention = model.model.layers[0].self_attn
    attention.forward = functools.partial(attention.forward)
    assert left_of(model) == "another program computes it"


def test_angles_are_those_of_a_rotary_module_that_fits_attention() -> None:
    model = tiny("deepseek_v3", num_hidden_layers=1)
    other = tiny("llama", num_hidden_layers=1).model.rotary_emb
    # an image's, ahead of the text's
    model._modules = {"vision": other, **model._modules}
    right = steps(model, filled(model, dynamic(model)), count=2)
    assert any(part.startswith(PART) for part in apply(model).replaced)
    close(steps(model, filled(model, dynamic(model)), count=2), right)


def test_a_rotary_module_that_is_left_gives_a_proof_its_angles() -> None:
    model = tiny("deepseek_v3", num_hidden_layers=1)
    rotary = model.model.rotary_emb
    rotary.forward = functools.partial(rotary.forward)
    right = steps(model, filled(model, dynamic(model)), count=2)
    report = apply(model)
    assert report.left["rotary positions: another program computes it"] == ["model.rotary_emb"]
    assert any(part.startswith(PART) for part in report.replaced)
    close(steps(model, filled(model, dynamic(model)), count=2), right)


def test_a_model_that_was_loaded_with_the_registrys_attention_decodes_by_the_op() -> None:
    model = tiny("deepseek_v3", num_hidden_layers=1)
    model.set_attn_implementation("registry")
    assert any(part.startswith(PART) for part in apply(model).replaced)
    restore(model)
    assert model.config._attn_implementation == "registry"


def test_a_model_that_is_quantised_after_apply_decodes_by_the_op() -> None:
    model = tiny("deepseek_v3", torch.bfloat16, num_hidden_layers=1)
    apply(model)
    report = apply(model, quantize="int8")
    assert any(part.startswith(PART) for part in report.replaced)
    with decoded() as calls:
        steps(model, filled(model, dynamic(model)), count=2)
    assert len(calls) == 2


def test_models_without_latents_hear_nothing_of_them() -> None:
    report = apply(tiny("llama", num_hidden_layers=1))
    assert not any(part.startswith(PART) for part in (*report.replaced, *report.left))
