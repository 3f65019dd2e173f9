"""Training without logits: the loss and the gradients of the plain model, where the two can be told apart, and when."""

from __future__ import annotations

import copy
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import registry
from registry.errors import RegistryError

from .tiny_models import CONFIGS, prompt, tiny

if TYPE_CHECKING:  # see late_imports
    import transformers

    from registry.integrations.transformers import apply, lora_config, restore
    from registry.integrations.transformers.losses import causal_lm_loss

pytestmark = pytest.mark.usefixtures("late_imports", "without_cpp_kernels")

FUSED = "loss without logits in training"
WITHOUT_DROPOUT = {"gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}}
PLAIN_LOGITS = [family for family in CONFIGS if family != "gemma2"]
QUICK = ("llama", "gpt2")


def training(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return tiny(family, dtype, **{**WITHOUT_DROPOUT.get(family, {}), **changes}).train()


def applied(family: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    model = training(family, dtype, **changes)
    apply(model)
    return model


def labels() -> torch.Tensor:
    """The prompt, of which some tokens have no loss."""
    found = prompt().clone()
    found[0, :4] = found[1, 9:] = -100
    return found


def step(model: Any, **how: Any) -> tuple[float, dict[str, torch.Tensor], Any]:
    """Loss, gradients and outputs of a training step."""
    model.zero_grad()
    outputs = model(prompt(), **{"labels": labels(), "use_cache": False, **how})
    outputs.loss.backward()
    return outputs.loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, outputs


def agree(one: Any, other: Any, **how: Any) -> Any:
    """The second model's outputs, after a step that must be the first one's."""
    (loss, gradients, _), (found, its, outputs) = step(one, **how), step(other, **how)
    assert found == pytest.approx(loss, abs=4e-6, rel=2e-6)
    assert its.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(its[name], gradient, atol=4e-6, rtol=4e-5, msg=lambda told, at=name: f"{at}: {told}")
    return outputs


@pytest.mark.parametrize(
    "family", [pytest.param(one, marks=() if one in QUICK else pytest.mark.thorough) for one in PLAIN_LOGITS]
)
@pytest.mark.few(1)
def test_a_step_has_the_plain_loss_and_gradients_and_no_logits(family: str) -> None:
    plain, model = training(family), training(family)
    report = apply(model)
    assert report.replaced[FUSED] == ["lm_head"]
    other = {"labels": prompt(), "ignore_index": int(prompt()[0, 3])}
    for how in ({}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(7), **other}):
        assert agree(plain, model, **how).logits is None


def test_shifted_labels_and_an_output_layer_with_a_bias() -> None:
    plain, model = training(), training()
    for one in (plain, model):
        one.lm_head.bias = torch.nn.Parameter(torch.linspace(-1, 1, 96))
    apply(model)
    shifted = torch.nn.functional.pad(labels(), (0, 1), value=-100)[:, 1:]
    assert agree(plain, model, shift_labels=shifted.contiguous()).logits is None


def test_logits_stay_where_they_are_asked_for_or_nothing_is_trained() -> None:
    plain, model = training(), applied()
    given = {"use_cache": False}
    for how in ({}, {"labels": None}):
        torch.testing.assert_close(model(prompt(), **how, **given).logits, plain(prompt(), **how, **given).logits)
    evaluated, expected = (one.eval()(prompt(), labels=labels(), **given) for one in (model, plain))
    torch.testing.assert_close(evaluated.logits, expected.logits, atol=1e-5, rtol=1e-5)
    assert evaluated.loss.item() == pytest.approx(expected.loss.item(), abs=2e-6)
    kept = training()
    assert FUSED not in apply(kept, fused_loss=False).replaced
    assert kept(prompt(), labels=labels(), **given).logits.shape == (2, 11, 96)


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("gemma2", {}, "its forward changes the logits before the loss"),
        ("granite", {"logits_scaling": 3.0}, "its forward changes the logits before the loss"),
    ],
)
@pytest.mark.few(1)
def test_a_model_that_changes_its_logits_keeps_them_with_the_reason(
    family: str, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, "granite", ("GraniteConfig", {}))
    plain, model = training(family, **changes), training(family, **changes)
    report = apply(model)
    assert report.left[f"{FUSED}: {told}"] == ["lm_head"]
    assert agree(plain, model).logits.shape == (2, 11, 96)


def test_a_model_that_changes_its_logits_later_is_an_error_and_no_wrong_loss() -> None:
    model = training("gemma2", final_logit_softcapping=None)
    assert FUSED in apply(model).replaced
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(RegistryError, match="changes its logits before the loss"):
        step(model)
    model.config.final_logit_softcapping = None
    assert agree(training("gemma2", final_logit_softcapping=None), model).logits is None


def test_an_output_layer_with_a_hook_or_of_another_class_makes_logits() -> None:
    plain, model, seen = training(), applied(), []
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, output: seen.append(output.shape))
    assert agree(plain, model).logits.shape == (2, 11, 96)
    assert seen == [(2, 11, 96)]
    hook.remove()
    assert agree(plain, model).logits is None
    other = torch.nn.Linear(64, 96, bias=False)
    other.weight = plain.lm_head.weight
    model.lm_head, model.model.embed_tokens.weight = other, plain.model.embed_tokens.weight
    assert step(model)[2].logits.shape == (2, 11, 96)


@pytest.mark.parametrize("part", ["model", "output layer"])
def test_a_forward_that_another_program_has_replaced_stays_with_the_reason(part: str) -> None:
    """As accelerate does for mixed precision and for weights that are loaded when they are needed."""
    plain, model = training(), training()
    at = model if part == "model" else model.lm_head
    own, calls = at.forward, []
    at.forward = lambda *given, **named: (calls.append(part), own(*given, **named))[1]
    left = apply(model).left
    assert left[f"{FUSED}: another program has replaced its forward, or that of its output layer"] == ["lm_head"]
    assert agree(plain, model).logits.shape == (2, 11, 96)
    assert calls == [part]


@pytest.mark.thorough
def test_half_precision_has_a_float32_loss_and_gradients_as_near_as_the_plain_models() -> None:
    plain, model = training(dtype=torch.bfloat16), applied(dtype=torch.bfloat16)
    exact = training().double()
    exact.load_state_dict({name: value.double() for name, value in plain.state_dict().items()})
    right, gradients, _ = step(exact)
    (own, plain_gradients, _), (found, its, outputs) = step(plain), step(model)
    assert (outputs.loss.dtype, outputs.logits) == (torch.float32, None)
    assert abs(found - right) < 2 * abs(own - right) + 2e-3
    for name, gradient in gradients.items():
        allowed = 2 * (plain_gradients[name].double() - gradient).norm() + 1e-2 * gradient.norm()
        assert (its[name].double() - gradient).norm() < allowed, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.few(1)
def test_a_second_backward_gives_the_first_ones_gradients(dtype: torch.dtype) -> None:
    model = applied(dtype=dtype)
    loss = model(prompt(), labels=labels(), use_cache=False).loss * 3.0
    loss.backward(retain_graph=True)
    first = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, first[name]), name
    assert all(one.any() for one in first.values())


def test_the_weights_gradient_is_the_tensor_that_the_forward_has_computed() -> None:
    """As large as the weight, it is scaled where it lies, unless another backward may follow."""
    for retain in (False, True):
        model = applied(tie_word_embeddings=False)
        kept = set()

        def pack(tensor: torch.Tensor, held: set[int] = kept) -> torch.Tensor:
            held.add(tensor.data_ptr())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(prompt(), labels=labels(), use_cache=False).loss * 2.0
        loss.backward(retain_graph=retain)
        assert (model.lm_head.weight.grad.data_ptr() in kept) is not retain


@pytest.mark.parametrize("frozen", ["lm_head.weight", "model"])
@pytest.mark.few(1)
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    plain, model = training(tie_word_embeddings=False), applied(tie_word_embeddings=False)
    for one in (plain, model):
        for name, parameter in one.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
    assert agree(plain, model).logits is None


def test_loss_and_gradients_come_from_one_op_and_losses_alone_from_another(tmp_path: Path) -> None:
    model = applied(dtype=torch.bfloat16)
    called = []
    for grad in (True, False):
        with registry.record(tmp_path / f"{grad}.yaml"), torch.set_grad_enabled(grad):
            model(prompt(), labels=labels(), use_cache=False)
        called.append((tmp_path / f"{grad}.yaml").read_text())
    assert ["fused_linear_cross_entropy_gradients:" in each for each in called] == [True, False]
    assert ["fused_linear_cross_entropy:" in each for each in called] == [False, True]


def test_autocast_computes_in_its_dtype_and_gives_float32_gradients() -> None:
    plain, model = training(), applied()
    with torch.autocast("cpu", torch.bfloat16):
        (own, gradients, _), (found, its, outputs) = step(plain), step(model)
    assert outputs.logits is None
    assert found == pytest.approx(own, rel=3e-3)
    for name, gradient in gradients.items():
        assert its[name].dtype == torch.float32
        assert (its[name] - gradient).norm() < 0.03 * gradient.norm() + 1e-4, name


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.thorough
def test_layers_that_are_computed_again_for_their_gradients() -> None:
    plain, model = training(), applied()
    for how in ({"use_reentrant": False}, {"use_reentrant": True}):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
        assert agree(plain, model).logits is None


@pytest.mark.thorough
def test_it_compiles_whole_in_a_thread_that_has_not_trained() -> None:
    plain, model = training(), applied()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    how: dict[str, Any] = {"labels": labels(), "use_cache": False, "num_items_in_batch": torch.tensor(7)}
    with ThreadPoolExecutor(1) as thread:
        traced = thread.submit(compiled, prompt(), **how).result()
    traced.loss.backward()
    assert traced.logits is None
    loss, gradients, _ = step(plain, **how)
    assert traced.loss.item() == pytest.approx(loss, abs=4e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=4e-6, rtol=4e-5)


def test_it_looks_like_the_model_that_it_is(tmp_path: Path) -> None:
    plain, model = training(), applied()
    assert isinstance(model, type(plain))
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)
    loss, *rest = model(prompt(), labels=labels(), use_cache=False, return_dict=False)
    assert (loss.dim(), rest) == (0, [])
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    copied = copy.deepcopy(model)
    agree(plain, copied)
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    agree(plain, model)
    assert str(apply(model)) == "nothing to replace"
    restore(model)
    assert (type(model), type(model.lm_head)) == (type(plain), torch.nn.Linear)
    assert agree(plain, model).logits.shape == (2, 11, 96)


def test_threads_train_and_predict_with_one_model_at_once() -> None:
    model = applied()
    expected = model(prompt(), use_cache=False).logits.detach()
    loss = model(prompt(), labels=labels(), use_cache=False).loss.item()

    def train() -> bool:
        outputs = [model(prompt(), labels=labels(), use_cache=False) for _ in range(20)]
        return all(one.loss.item() == pytest.approx(loss, abs=1e-6) for one in outputs)

    def predict() -> bool:
        found = [model(prompt(), use_cache=False).logits for _ in range(20)]
        return all(one.shape == expected.shape and torch.allclose(one, expected, atol=1e-5) for one in found)

    with ThreadPoolExecutor(2) as threads:
        assert all(each.result() for each in [threads.submit(train), threads.submit(predict)])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("target", ["q_proj", "lm_head"])
@pytest.mark.parametrize("applied_first", [True, False])
def test_adapters_with_and_without_one_of_the_output_layer(target: str, applied_first: bool) -> None:
    import peft

    found = []
    for plain in (True, False):
        model = applied() if applied_first and not plain else training()
        torch.manual_seed(3)
        adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        if not plain and not applied_first:
            apply(adapted)
        found.append(step(adapted.train()))
    (loss, gradients, _), (its_loss, its, outputs) = found
    assert its_loss == pytest.approx(loss, abs=2e-6)
    assert (outputs.logits is None) is (target == "q_proj")
    for name, gradient in gradients.items():
        torch.testing.assert_close(its[name], gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_packed_layers_beside_a_dense_output_layer_train_without_logits() -> None:
    import peft

    model = training(dtype=torch.bfloat16, hidden_size=128, intermediate_size=256)
    report = apply(model, quantize="int4", group_size=32)
    assert FUSED in report.replaced
    packed = training(dtype=torch.bfloat16, hidden_size=128, intermediate_size=256)
    assert (
        f"{FUSED}: the model has no dense output layer of its own"
        in apply(packed, quantize="int4", group_size=32, lm_head=True).left
    )
    config = lora_config(peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False), model)
    adapted = peft.get_peft_model(model, config).train()
    outputs = adapted(prompt(), labels=labels(), use_cache=False)
    outputs.loss.backward()
    assert outputs.logits is None
    assert all(one.grad is not None for one in adapted.parameters() if one.requires_grad)


@pytest.mark.thorough
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_transformers_trainer_trains_and_evaluates_as_with_the_plain_model(smoothing: float, tmp_path: Path) -> None:
    texts = [{"input_ids": prompt().roll(by, -1)[0], "labels": labels().roll(by, -1)[0]} for by in range(8)]
    found = []
    for model in (training(), applied()):
        options = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=1,
            learning_rate=1e-2, label_smoothing_factor=smoothing, report_to=[], use_cpu=True, save_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, options, train_dataset=texts, eval_dataset=texts)
        trainer.train()
        losses = [told["loss"] for told in trainer.state.log_history if "loss" in told]
        found.append([*losses, trainer.evaluate()["eval_loss"], float(trainer.predict(texts).predictions.sum())])
    assert found[0][0] - found[0][2] > 0.1
    assert found[1] == pytest.approx(found[0], rel=2e-3)


@pytest.mark.parametrize("given", [None, True, False])
@pytest.mark.few(1)
def test_return_dict_that_is_given_as_none_is_the_configs(given: bool | None) -> None:
    model = tiny("llama").train()
    apply(model)
    outputs = model(prompt(), labels=prompt(), return_dict=given)
    assert isinstance(outputs, tuple) is (given is False)


def test_a_sum_that_overflows_float16_is_a_loss_in_float32_with_gradients() -> None:
    logits = (torch.randn(200, 8) + torch.tensor([600.0] + [0.0] * 7)).half().requires_grad_()
    labels = torch.full((200,), 3)
    loss = causal_lm_loss(logits[None], None, 8, num_items_in_batch=200, shift_labels=labels[None])
    expected = torch.nn.functional.cross_entropy(logits.float(), labels)
    torch.testing.assert_close(loss, expected, atol=0.0, rtol=1e-3)
    (gradient,) = torch.autograd.grad(loss, logits)
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=2e-3)


def test_a_target_outside_of_the_vocabulary_is_nan_without_gradients_too() -> None:
    logits = torch.randn(1, 4, 8, dtype=torch.bfloat16)
    loss = causal_lm_loss(logits, None, 8, shift_labels=torch.tensor([[1, 2, 9, -100]]))
    assert loss.isnan()


def test_a_layer_of_a_group_called_again_sees_new_weights_and_the_grad_mode() -> None:
    model = tiny("llama")
    apply(model)
    attention = model.model.layers[0].self_attn
    x = torch.randn(1, 3, model.config.hidden_size)
    with torch.no_grad():
        attention.q_proj(x)
    assert attention.q_proj(x).requires_grad
    with torch.no_grad():
        attention.k_proj.weight.zero_()
    assert attention.k_proj(x).count_nonzero() == 0


def test_a_replica_with_other_tensors_computes_with_its_own() -> None:
    model = tiny("llama")
    apply(model)
    layer = model.model.layers[0]
    x = torch.randn(1, 3, model.config.hidden_size)
    replica = layer.self_attn.q_proj._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros_like(layer.self_attn.q_proj.weight), None
    assert replica(x).count_nonzero() == 0
