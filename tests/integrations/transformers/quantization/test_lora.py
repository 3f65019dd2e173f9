"""LoRA by PEFT over packed layers: adapters learn, packed weights and all others stay."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from registry import InvalidArgumentError
from registry.nn import PackedLinear, ScaledLinear

from .checkpoints_written import IDS, gptq, llama

if TYPE_CHECKING:  # see late_imports
    from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM

    from registry.integrations.transformers import RegistryConfig, apply, load, lora_config

# names that the oldest supported transformers has, and that PEFT asks for
pytestmark = [
    pytest.mark.usefixtures("late_imports"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plain")
    llama().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=RegistryConfig(group_size=32))


def adapted(base: Any, **options: Any) -> Any:
    config = LoraConfig(**{"r": 4, "target_modules": TARGETS, "lora_alpha": 8, **options})
    torch.manual_seed(1)
    return get_peft_model(copy.deepcopy(base), lora_config(config, base))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(IDS).logits
    assert isinstance(found, torch.Tensor)
    return found


def test_a_step_moves_the_adapters_alone_as_over_the_dequantised_weights(base: Any) -> None:
    model = adapted(base)
    dense = get_peft_model(copy.deepcopy(base).dequantize(), LoraConfig(r=4, target_modules=TARGETS, lora_alpha=8))
    learnt = {name: each for name, each in model.named_parameters() if each.requires_grad}
    assert {name.split(".")[-3] for name in learnt} == {"lora_A", "lora_B"}
    dense.load_state_dict({name: each.detach() for name, each in learnt.items()}, strict=False)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    for each in (model, dense):
        optimizer = torch.optim.SGD([one for one in each.parameters() if one.requires_grad], lr=1.0)
        for _ in range(2):
            optimizer.zero_grad()
            each(IDS, labels=IDS).loss.backward()
            optimizer.step()
    moved = {name for name, each in model.state_dict().items() if not torch.equal(each, before[name])}
    assert moved == set(learnt)
    found, expected = logits(model).double(), logits(dense).double()
    assert (found - logits(base).double()).square().mean().sqrt() > 0.1 * expected.square().mean().sqrt()
    assert (found - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()


def test_an_adapter_is_saved_and_loaded_over_packed_layers(base: Any, tmp_path: Path) -> None:
    model = adapted(base, init_lora_weights=False)
    model.save_pretrained(tmp_path)
    config = lora_config(PeftConfig.from_pretrained(tmp_path))
    again = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path, config=config)
    assert torch.equal(logits(again), logits(model))
    assert not torch.equal(logits(model), logits(base))
    with model.disable_adapter():
        assert torch.equal(logits(model), logits(base))


FP8 = {"bits": 8, "activations": "float8_e4m3fn"}


@pytest.mark.parametrize("options", [{"group_size": 32}, FP8, {"activations": "int8"}], ids=["int4", "fp8", "w4a8"])
def test_all_linear_finds_packed_layers(options: dict[str, Any], tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=RegistryConfig(**options))
    model = adapted(base, target_modules="all-linear")
    adapters = {name.split(".lora_A")[0].split(".")[-1] for name, _ in model.named_parameters() if ".lora_A." in name}
    packed = PackedLinear | ScaledLinear
    assert adapters == {name.rpartition(".")[2] for name, one in base.named_modules() if isinstance(one, packed)}


def test_adapters_learn_over_float8_as_over_its_dequantised_weights(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=RegistryConfig(**FP8))
    apply(base)
    model = adapted(base, init_lora_weights=False)
    dense = get_peft_model(copy.deepcopy(base).dequantize(), LoraConfig(r=4, target_modules=TARGETS, lora_alpha=8))
    learnt = {name: each for name, each in model.named_parameters() if each.requires_grad}
    dense.load_state_dict({name: each.detach() for name, each in learnt.items()}, strict=False)
    for each in (model, dense):
        each.enable_input_require_grads()
        each(IDS, labels=IDS).loss.backward()
    expected = {name: each.grad for name, each in dense.named_parameters() if each.requires_grad}
    for name, each in learnt.items():
        assert each.grad is not None
        assert (each.grad - expected[name]).norm() < 0.05 * expected[name].norm()
    with pytest.raises(InvalidArgumentError, match="not merged into packed layers"):
        model.merge_adapter()
    with torch.device("meta"):
        copied = copy.deepcopy(base).to("meta")
    moved = get_peft_model(copied, lora_config(LoraConfig(target_modules=TARGETS)))
    assert all(each.is_meta for name, each in moved.named_parameters() if ".lora_" in name)


def test_adapters_learn_over_act_order_under_autocast_and_checkpointing(tmp_path: Path) -> None:
    base = load(gptq(tmp_path, shuffled=True)[0], dtype=torch.bfloat16)
    # PEFT's preparation: norms and embeddings in float32, checkpointing on
    options = {"use_reentrant": False}
    base = prepare_model_for_kbit_training(base, gradient_checkpointing_kwargs=options)
    model = adapted(base).train()
    with torch.autocast("cpu", torch.bfloat16):
        model(IDS, labels=IDS).loss.backward()
    gradients = [each.grad for name, each in model.named_parameters() if ".lora_B." in name]
    assert len(gradients) == len(TARGETS)
    assert all(each is not None and each.abs().sum() > 0 for each in gradients)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_dora": True}, "use_dora=True needs weights in full precision"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' reads weights"),
    ],
    ids=["dora", "pissa"],
)
def test_what_reads_the_weight_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"lora_config: {message}"):
        lora_config(LoraConfig(target_modules=TARGETS, **options))
    with pytest.raises(InvalidArgumentError, match=r"got a dict, expected a peft\.LoraConfig"):
        lora_config({})


def test_adapters_are_not_merged(base: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"not merged into packed layers.*\n.*dequantize"):
        adapted(base).merge_and_unload()
