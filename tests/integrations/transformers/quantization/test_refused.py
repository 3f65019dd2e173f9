"""What cannot be packed or loaded: the error names the file, the tensor or the setting, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import InvalidArgumentError

from .checkpoints_written import awq, compressed_tensors, gptq, llama
from .test_checkpoints import change_config

if TYPE_CHECKING:  # see late_imports
    from transformers import AutoModelForCausalLM

    from registry.integrations.transformers import RegistryConfig, load

pytestmark = pytest.mark.usefixtures("late_imports")

CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"bits": 3}, r"bits=3\n  expected one of 1, 2, 4, 8"),
    ({"bits": True}, "bits=True"),
    ({"group_size": 100}, r"group_size=100\n  expected one of -1, 16, 32"),
    ({"symmetric": 1}, "symmetric=1"),
    ({"codebook": "fp4"}, r"codebook='fp4'\n  expected one of None, 'nf4'"),
    ({"codebook": "nf4", "bits": 8}, "bits=8, but codebook='nf4' has levels for 4 bits"),
    ({"activations": "int8", "bits": 2}, r"bits=2 beside activations='int8'\n.*bits=8 or bits=4"),
    ({"activations": "int8", "codebook": "nf4"}, "codebook='nf4' beside activations='int8'"),
    ({"activations": "fp8", "bits": 8}, "activations='fp8'"),
    ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert='lm_head'"),
    ({"grp_size": 64}, r"grp_size=64\n  expected .*group_size"),
    ({"quant_method": "gptq"}, "quant_method='gptq'"),
    ({"experts": {"mlp.experts": {"group_size": 32, "zeros": "none"}}}, r"experts\['mlp.experts'\]\.zeros='none'"),
    ({"experts": {"mlp.experts": 4}}, r"experts={'mlp.experts': 4}\n  expected settings by a module's name"),
    ({"modules": {"mlp": 8}}, r"modules={'mlp': 8}\n  expected settings by a module's name"),
    ({"modules": ["mlp"]}, r"modules=\['mlp'\]"),
    ({"source": "gptq"}, "source='gptq'"),
    ({"source": {"quant_method": "hqq"}}, r"source has quant_method='hqq'\n  expected .*gptq, awq"),
]


@pytest.mark.parametrize(("given", "message"), CONFIGS, ids=[message for _, message in CONFIGS])
def test_a_config_that_means_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"RegistryConfig: {message}"):
        RegistryConfig(**given)


SETTINGS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (gptq, {"bits": 3}, r"gptq: bits=3 .*\n.*words of 3 bits"),
    (gptq, {"bits": None}, "gptq: the checkpoint's quantization_config lacks 'bits'"),
    (gptq, {"bits": "4"}, "gptq: bits='4'"),
    (gptq, {"checkpoint_format": "marlin"}, "gptq: checkpoint_format='marlin'"),
    (gptq, {"dynamic": {"(": {"bits": 8}}}, "is no regular expression"),
    (gptq, {"quant_method": "hqq"}, "load: .* has quant_method='hqq'"),
    (awq, {"version": "gemv_fast"}, r"awq: version='gemv_fast' .*\n  supported: 'gemm', 'gemv'"),
    (awq, {"bits": 8}, "awq: bits=8"),
    (compressed_tensors, {"format": "nvfp4-pack-quantized"}, "compressed-tensors: format='nvfp4"),
    (compressed_tensors, {"config_groups": None}, "lacks 'config_groups'"),
    (compressed_tensors, {"config_groups": {"g": 4}}, r"config_groups\['g'\] is 4"),
    (compressed_tensors, {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config, which would not be"),
    (compressed_tensors, {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}},
     r"config_groups\['g'\]: weights.type='float'"),
    (compressed_tensors, {"config_groups": {"g": {"targets": ["re:q"], "weights": {"num_bits": 4, "group_size": 32}}}},
     "no target of config_groups names it"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "message"), SETTINGS, ids=[message for *_, message in SETTINGS])
def test_settings_that_are_not_supported_are_refused(
    tmp_path: Path, kind: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    folder, _ = kind(tmp_path)
    change_config(folder, **changes)
    with pytest.raises(InvalidArgumentError, match=message):
        load(folder)


UP = "model.layers.0.mlp.up_proj"
Tensors = dict[str, torch.Tensor]


def without(name: str) -> Callable[[Tensors], Any]:
    return lambda state: state.pop(f"{UP}.{name}")


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], Any]:
    return lambda state: state.update({f"{UP}.{name}": change(state[f"{UP}.{name}"])})


FILES: list[tuple[Callable[..., Any], Callable[[Tensors], Any], str]] = [
    (gptq, without("qzeros"), rf"gptq: {UP}.qzeros is not in the checkpoint\n  model.safetensors holds"),
    (gptq, without("qweight"), f"{UP}.qweight is not in the checkpoint"),
    (lambda folder: gptq(folder, shuffled=True), without("g_idx"), f"{UP}.g_idx is not in the checkpoint"),
    (gptq, replaced("scales", lambda x: x[1:].clone()), f"{UP}: from_gptq: scales is float16 of shape"),
    (gptq, replaced("qweight", lambda x: x.float()), f"{UP}: from_gptq: qweight is float32"),
    (gptq, replaced("g_idx", torch.zeros_like), f"{UP}: PackedWeight: g_idx has 64 elements in group 0"),
    (awq, replaced("qweight", lambda x: x.T.contiguous()), f"{UP}: from_awq: "),
    (awq, lambda state: state.update({"model.layers.0.mlp.act_fn.scales": torch.ones(128)}),
     r"mlp\.act_fn\.qweight, model\.layers\.0\.mlp\.act_fn\.qzeros is not in the checkpoint"),
    (compressed_tensors, without("weight_shape"), f"{UP}.weight_shape is not in the checkpoint"),
    (compressed_tensors, replaced("weight_scale", lambda x: x.int()), f"{UP}: from_compressed_tensors: weight_scale"),
    (gptq, lambda state: [state.pop(name) for name in list(state) if name.startswith(UP)],
     f"no file of the checkpoint has {UP}.weight, nor a packed form of it"),
    (gptq, lambda state: [state.pop(name) for name in list(state) if name.rpartition(".")[2] not in ("weight", "bias")],
     "model.safetensors has no tensor named qweight"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "damage", "message"), FILES, ids=[message for *_, message in FILES])
def test_tensors_that_are_missing_or_wrong_are_named(
    tmp_path: Path, kind: Callable[..., Any], damage: Callable[[Tensors], Any], message: str
) -> None:
    folder, _ = kind(tmp_path)
    state = load_file(folder / "model.safetensors")
    damage(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidArgumentError, match=message):
        load(folder)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folder, _ = gptq(tmp_path)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InvalidArgumentError, match=r"model\.safetensors is no complete safetensors file"):
        load(folder)


@pytest.mark.parametrize("part", ["scales", "zeros"])
def test_a_saved_model_without_a_tensor_is_refused(tmp_path: Path, part: str) -> None:
    llama().save_pretrained(tmp_path / "plain")
    config = RegistryConfig(group_size=32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    model.save_pretrained(tmp_path / "packed")
    file = tmp_path / "packed" / "model.safetensors"
    state = load_file(file)
    state.pop(f"{UP}.{part}")
    save_file(state, file, {"format": "pt"})
    with pytest.raises(InvalidArgumentError, match=rf"{UP}\.{part} is not in the checkpoint"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    folder, _ = gptq(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(InvalidArgumentError, match=r"its packed weight has shape \(.*\), the model's layer"):
        load(folder)


def test_what_is_not_quantised_is_no_checkpoint_for_load(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"is not quantised\n.*quantization_config=RegistryConfig"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/absent/model", "load: /absent/model: no such folder"),
        ("./absent", r"load: \./absent: no such folder"),
        (Path("absent"), "load: absent: no such folder"),
        ("a/b/c", "load: a/b/c: no such folder"),
        (None, r"load: got a NoneType\n  expected a folder, or a name"),
    ],
    ids=str,
)
def test_a_path_of_nothing_is_told_before_the_hub_is_asked(path: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        load(path)


def test_disks_are_refused_at_once(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgumentError, match="device_map places layers on disk"):
        AutoModelForCausalLM.from_pretrained(
            tmp_path, quantization_config=RegistryConfig(), device_map={"model": "cpu", "lm_head": "disk"}
        )


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    model = llama()
    model.get_submodule(UP).weight.data[3, 5] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(InvalidArgumentError, match=rf"{UP}: quantize: the weight holds NaN or infinity"):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=RegistryConfig(group_size=32))


def test_a_model_without_linear_layers_to_pack_is_refused(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    with pytest.raises(InvalidArgumentError, match="LlamaForCausalLM has no layer to pack"):
        AutoModelForCausalLM.from_pretrained(
            tmp_path, quantization_config=RegistryConfig(modules_to_not_convert=["model", "lm_head"])
        )
