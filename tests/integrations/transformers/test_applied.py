"""An applied model among what people do with models: training, copies, files, compilers, adapters, autocast."""

from __future__ import annotations

import copy
import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry.errors import RegistryError

from .tiny_models import cache_name, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers

    from registry.integrations.transformers import apply
    from registry.integrations.transformers.forwards.linears import LinearGroup, MemberForward

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")


def pair(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[Any, Any]:
    """A model, and its like after ``apply``."""
    plain, applied = tiny(family, dtype, **changes), tiny(family, dtype, **changes)
    apply(applied)
    return plain, applied


def group_of(model: Any) -> LinearGroup:
    return next(module.registry_group for module in model.modules() if isinstance(module, MemberForward))


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("family", ["llama", pytest.param("gemma2", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_training_step_has_the_loss_and_the_gradients_of_the_plain_model(family: str, checkpointing: bool) -> None:
    plain, applied = pair(family)
    if checkpointing:
        applied.gradient_checkpointing_enable()
    losses = [model.train()(prompt(), labels=prompt(), use_cache=False).loss for model in (plain, applied)]
    for loss in losses:
        loss.backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), abs=2e-6)
    for (name, own), other in zip(plain.named_parameters(), applied.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, own.grad, atol=2e-6, rtol=2e-5, msg=lambda told, name=name: f"{name}: {told}"
        )


def test_layers_of_one_input_learn_as_one_product_and_alone_where_one_is_frozen() -> None:
    for frozen in (None, "model.layers.0.self_attn.k_proj.weight"):
        found = []
        for model in pair():
            model.train()
            if frozen:
                model.get_parameter(frozen).requires_grad_(False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for _ in range(2):
                optimizer.zero_grad()
                model(prompt(), labels=prompt(), use_cache=False).loss.backward()
                optimizer.step()
            found.append(dict(model.named_parameters()))
        for name, own in found[0].items():
            torch.testing.assert_close(
                found[1][name], own, atol=4e-6, rtol=4e-5, msg=lambda told, at=name: f"{at}: {told}"
            )
        gradients = [found[1][f"model.layers.0.mlp.{name}.weight"].grad for name in ("gate_proj", "up_proj")]
        assert gradients[0].untyped_storage().data_ptr() == gradients[1].untyped_storage().data_ptr()


@pytest.mark.parametrize("frozen", [False, True])
def test_biases_of_packed_layers_of_one_input_learn(frozen: bool) -> None:
    applied, plain = (tiny("llama", num_hidden_layers=1, attention_bias=True) for _ in range(2))
    apply(applied, quantize="int4", group_size=32)
    apply(plain, quantize="int4", group_size=32)
    plain.dequantize()
    names = ("k_proj", "v_proj", "o_proj", *(() if frozen else ("q_proj",)))
    for model in (applied, plain):
        model.model.layers[0].self_attn.q_proj.bias.requires_grad_(not frozen)
        model(prompt(), labels=prompt()).loss.backward()
    for name in names:
        found, expected = (model.model.layers[0].self_attn.get_submodule(name).bias.grad for model in (applied, plain))
        assert found is not None, name
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)
    assert frozen is (applied.model.layers[0].self_attn.q_proj.bias.grad is None)


def test_of_a_gated_mlp_autograd_keeps_no_more_than_gate_and_up_beside_inputs() -> None:
    """And neither the activation's result nor queries and keys before their rotation."""
    _, model = pair(dtype=torch.bfloat16)
    kept: dict[int, int] = {}
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes() // prompt().numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model.train()(prompt(), use_cache=False).logits
    config = model.config
    assert 2 * config.intermediate_size * 2 in kept.values()
    assert config.intermediate_size * 2 not in kept.values()
    assert (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim * 2 not in kept.values()
    assert logits.requires_grad


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
@pytest.mark.few(1)
def test_an_activation_that_is_computed_again_has_the_plain_gradients(family: str) -> None:
    plain, model = pair(family)
    seeds = torch.randn(plain(prompt()).logits.shape)
    for one in (plain, model):
        one.model.layers[0].mlp.down_proj.bias = torch.nn.Parameter(torch.full((64,), 0.1))
        one(prompt()).logits.backward(seeds)
    for (name, own), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(
            other.grad, own.grad, atol=2e-4, rtol=2e-4, msg=lambda told, at=name: f"{at}: {told}"
        )


def test_weights_that_change_before_the_backward_are_an_error() -> None:
    _, applied = pair()
    loss = applied.train()(prompt(), labels=prompt(), use_cache=False).loss
    with torch.no_grad():
        applied.model.layers[0].mlp.up_proj.weight.mul_(2.0)
    with pytest.raises(RegistryError, match="changed between a forward and its backward"):
        loss.backward()


def test_the_loss_of_half_logits_is_in_float32_and_counts_what_the_trainer_says() -> None:
    plain, applied = pair(dtype=torch.bfloat16)
    for how in ({}, {"num_items_in_batch": 7}):
        with torch.no_grad():
            own, other = (model(prompt(), labels=prompt(), **how).loss for model in (plain, applied))
        assert other.dtype == torch.float32
        assert other.item() == pytest.approx(own.item(), rel=2e-3)


def test_half_logits_err_no_more_than_the_plain_models() -> None:
    plain, applied = pair(dtype=torch.bfloat16)
    exact = tiny("llama").double()
    exact.load_state_dict({name: value.double() for name, value in plain.state_dict().items()})
    with torch.no_grad():
        right = exact(prompt()).logits
        own, other = ((model(prompt()).logits.double() - right).abs().max() for model in (plain, applied))
    assert other < 2 * own + 1e-3


def test_a_copy_is_a_model_of_its_own_with_one_product() -> None:
    _, applied = pair()
    copied = copy.deepcopy(applied)
    group = group_of(copied)
    assert group is not group_of(applied)
    assert all(layer in set(copied.modules()) for layer in group.layers)
    with torch.no_grad():
        before = applied(prompt()).logits
        for parameter in copied.parameters():
            parameter.zero_()
        assert torch.equal(applied(prompt()).logits, before)
        assert copied(prompt()).logits.abs().max() == 0.0
    assert group.is_one


def test_a_conversion_joins_the_weights_again() -> None:
    _, applied = pair()
    applied.to(torch.bfloat16)
    assert group_of(applied).is_one
    assert applied(prompt()).logits.dtype == torch.bfloat16


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma3", pytest.param("llama", marks=pytest.mark.thorough)])
def test_an_applied_model_is_exported(family: str) -> None:
    model = tiny(family, num_hidden_layers=1)
    with torch.no_grad():
        expected = model(prompt()).logits
        apply(model)
        program = torch.export.export(model, (prompt(),), {"use_cache": False}, strict=False)
        found = program.module()(prompt(), use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_an_applied_model_that_is_converted_to_float64_computes_in_it(family: str) -> None:
    model = tiny(family)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(prompt()).logits
        apply(model)
        model(prompt())  # what is made at the first call is of float32
        found = model.double()(prompt()).logits
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_weights_that_were_replaced_are_what_is_multiplied_by() -> None:
    """FSDP and functional_call put other tensors in a parameter's place, without a word to the module."""
    plain, applied = pair()
    for model in (plain, applied):
        layer = model.model.layers[0].self_attn.k_proj
        layer.weight = torch.nn.Parameter(torch.full_like(layer.weight, 0.01))
        layer = model.model.layers[1].self_attn.v_proj
        layer.weight = torch.nn.Parameter(layer.weight.detach() * 2)
    with torch.no_grad():
        torch.testing.assert_close(applied(prompt()).logits, plain(prompt()).logits, atol=1e-5, rtol=1e-4)


# "parameter" alone replaces some of the weights that are one product; each of the ways is tested in eager code above
@pytest.mark.parametrize(
    "mode", ["parameter", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ("assigned", "functional"))]
)
@pytest.mark.thorough
def test_a_compiled_program_multiplies_by_weights_that_were_put_in_later(mode: str) -> None:
    plain, applied = pair(num_hidden_layers=1)
    compiled = torch.compile(applied, backend="eager")
    state = {name: value * 0.5 + 0.01 for name, value in plain.state_dict().items()}
    with torch.no_grad():
        compiled(prompt())
        if mode == "functional":
            step = torch.compile(lambda given: torch.func.functional_call(applied, given, (prompt(),)), backend="eager")
            found = step(state).logits
        elif mode == "assigned":
            applied.load_state_dict({name: value.clone() for name, value in state.items()}, assign=True)
            found = compiled(prompt()).logits
        else:
            state = {**plain.state_dict(), "model.layers.0.self_attn.k_proj.weight": torch.full((32, 64), 0.01)}
            applied.model.layers[0].self_attn.k_proj.weight = torch.nn.Parameter(torch.full((32, 64), 0.01))
            found = compiled(prompt()).logits
        plain.load_state_dict(state)
        torch.testing.assert_close(found, plain(prompt()).logits, atol=1e-5, rtol=1e-4)
    torch._dynamo.reset()


def test_a_model_in_a_file_computes_what_it_did() -> None:
    plain, applied = pair()
    for module in (*plain.modules(), *applied.modules()):
        # transformers' functions for Hugging Face's kernels, where it accepts the installed ones: no file holds them
        vars(module).pop("_kernel_funcs", None)
    file = io.BytesIO()
    torch.save(applied, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is type(applied)
    with torch.no_grad():
        torch.testing.assert_close(loaded(prompt()).logits, plain(prompt()).logits, atol=1e-5, rtol=1e-4)
    assert group_of(loaded).is_one
    file = io.BytesIO()
    torch.save(plain, file)
    size = file.tell()
    torch.save(applied, file := io.BytesIO())
    assert file.tell() < 1.2 * size, "joint weights are parts of the layers'"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_forward_mode_derivatives_are_the_plain_models() -> None:
    found = []
    for model in pair():
        embedded = model.get_input_embeddings()(prompt()).detach()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(embedded, torch.ones_like(embedded))
            logits = model(inputs_embeds=dual, use_cache=False).logits
            found.append(torch.autograd.forward_ad.unpack_dual(logits).tangent)
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.few(2)
def test_one_new_token_over_a_cache_has_gradients(family: str, static: bool) -> None:
    found = []
    for model in pair(family):
        kind = transformers.StaticCache if static else transformers.DynamicCache
        given = {cache_name(model): kind(config=model.config, **({"max_cache_len": 32} if static else {}))}
        with torch.no_grad():
            model(prompt(), **given)
        model(prompt()[:, :1], **given).logits.square().sum().backward()
        found.append([one.grad for one in model.parameters()])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(other, own, atol=1e-4, rtol=1e-4)


def test_an_input_that_changes_between_two_layers_is_multiplied_as_it_is() -> None:
    _, applied = pair()
    attention, x = applied.model.layers[0].self_attn, torch.randn(3, 64)
    with torch.no_grad():
        attention.q_proj(x)
        x.add_(1.0)
        found = attention.k_proj(x)
        torch.testing.assert_close(found, torch.nn.functional.linear(x, attention.k_proj.weight))


@pytest.mark.thorough
def test_two_threads_get_their_own_results() -> None:
    _, applied = pair()
    tokens = [prompt(), prompt().flip(-1)]
    with torch.no_grad():
        right = [applied(each).logits for each in tokens]
    wrong: list[int] = []

    def call(which: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.allclose(applied(tokens[which]).logits, right[which], atol=1e-5):
                    wrong.append(which)

    threads = [threading.Thread(target=call, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_saved_model_is_a_plain_one(tmp_path: Path) -> None:
    plain, applied = pair()
    applied.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert loaded.config._attn_implementation != "registry"
    with torch.no_grad():
        torch.testing.assert_close(loaded(prompt()).logits, plain(prompt()).logits)
    changed = {name: value * 0.5 for name, value in plain.state_dict().items()}
    for model in (plain, applied):
        model.load_state_dict(changed)
    with torch.no_grad():
        torch.testing.assert_close(applied(prompt()).logits, plain(prompt()).logits, atol=1e-5, rtol=1e-4)


# test_appending.py does so with the op in each layer counted
@pytest.mark.thorough
def test_it_compiles_whole_over_a_static_cache() -> None:
    plain, applied = pair()
    found = []
    for model in (plain, applied):
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        with torch.no_grad():
            given = {cache_name(model): cache}
            model(prompt(), **given)
            step = torch.compile(model, fullgraph=True, backend="aot_eager") if model is applied else model
            found.append([step(prompt()[:, :1], **given).logits for _ in range(2)])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_under_autocast_it_computes_in_the_half_that_was_asked_for() -> None:
    plain, applied = pair()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        own, other = plain(prompt()).logits, applied(prompt()).logits
    assert other.dtype == own.dtype
    assert (other - own).abs().max() < 0.02 * own.abs().max()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_adapters_are_put_into_it_and_trained() -> None:
    import peft

    found = []
    for model in pair():
        torch.manual_seed(3)
        targets = ["q_proj", "v_proj", "up_proj", "down_proj"]
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False))
        adapted(prompt(), labels=prompt()).loss.backward()
        found.append({name: one.grad for name, one in adapted.named_parameters() if one.grad is not None})
    assert len(found[1]) == 16
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_attention_by_its_name_alone() -> None:
    plain = tiny("llama")
    with torch.no_grad():
        expected = plain(prompt()).logits
        plain.set_attn_implementation("registry")
        torch.testing.assert_close(plain(prompt()).logits, expected, atol=1e-5, rtol=1e-4)
        plain.train().config.attention_dropout = 0.5
        for layer in plain.model.layers:
            layer.self_attn.attention_dropout = 0.5
        assert not torch.equal(plain(prompt()).logits, plain(prompt()).logits)


def test_a_gradient_by_torch_func_is_the_plain_models() -> None:
    found = []
    for model in pair():
        model.train()
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(given: dict[str, torch.Tensor], one: Any = model) -> torch.Tensor:
            how = {"labels": prompt(), "use_cache": False}
            result: torch.Tensor = torch.func.functional_call(one, given, (prompt(),), how).loss
            return result

        found.append(torch.func.grad(loss)(parameters))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=4e-6, rtol=4e-5)
