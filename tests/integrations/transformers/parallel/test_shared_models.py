"""Packed models in a tensor-parallel plan of two ranks compute, learn, are saved and unpacked as in one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from registry.errors import InvalidArgumentError

from ..quantization.checkpoints_written import awq, gptq
from ..tiny_models import prompt, tiny

RANKS = 2
SIZES: dict[str, Any] = {"num_key_value_heads": 4, "intermediate_size": 128}
CASES = (
    ("llama", "int4"), ("llama", "int8"), ("llama", "fp8"), ("qwen3", "int4"), ("phi3", "fp8"), ("mixtral", "int4"),
    ("mixtral", "int8"), ("mixtral", "fp8"),
)  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "int4": {"bits": 4, "group_size": 32},
    "int8": {"bits": 8, "group_size": 32},
    "fp8": {"bits": 8, "activations": "float8_e4m3fn"},
}
GATED: Mapping[str, Any] = {
    "tp_plan": {"model.layers.*.mlp.gate_up_proj": "packed_colwise", "model.layers.*.mlp.down_proj": "rowwise"}
}
"""A plan of gated layers alone, whose gate and up are one weight."""
Check = Callable[[Path, int], None]


def model_of(family: str) -> Any:
    """A small model, with biases that are not zero, which transformers makes them."""
    sizes = {**SIZES, "attention_bias": True} if family == "llama" else SIZES
    model = tiny(family, **sizes)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(generator=generator)
    return model


def pack(model: Any, name: str) -> Any:
    from registry.integrations.transformers import apply

    return apply(model, quantize=name, **({"group_size": 32} if name != "fp8" else {}))  # type: ignore[arg-type]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(prompt()).logits
    return found


def shared(folder: Path, family: str, *, plan: Mapping[str, Any] | None = None, **given: Any) -> Any:
    """The saved model of a family, spread over the ranks by its own plan."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    given |= {"distributed_config": DistributedConfig(**(plan or {"tp_plan": "auto"})), "dtype": torch.float32}
    return AutoModelForCausalLM.from_pretrained(folder / family, **given).eval()


def assert_near(found: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= limit


def allowed(name: str) -> float:
    """What the sum in another order changes; with float8 also a scale of the activations for each rank's columns."""
    return 0.1 if name == "fp8" else 2e-6


def _rank(rank: int, folder: str, checks: tuple[Check, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"KERNEL_REGISTRY_DB": f"{folder}/{rank}.db", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ["WORLD_SIZE"] = str(RANKS)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    try:
        for check in checks:
            check(Path(folder), rank)
    finally:
        dist.destroy_process_group()


def in_ranks(folder: Path, *checks: Check) -> None:
    """Run checks in two processes; what one asserts fails the test."""
    spawn(_rank, (str(folder), checks), nprocs=RANKS)


def check_packing(folder: Path, rank: int) -> None:
    """A model that is packed in its plan, as it is loaded, and one that was packed before, are one process's."""
    from registry.integrations.transformers import RegistryConfig

    for family, name in CASES:
        expected = torch.load(folder / f"{family}-{name}.pt")
        made = shared(folder, family)
        pack(made, name)
        loaded = shared(folder, family, quantization_config=RegistryConfig(**CONFIGS[name]))
        read = shared(folder, f"{family}-{name}")
        for model in (made, loaded, read):
            assert_near(logits(model), expected["logits"], allowed(name))
        if name != "fp8":
            tokens = made.generate(prompt(), max_new_tokens=4, do_sample=False, pad_token_id=0)
            assert torch.equal(tokens, expected["tokens"])
        for state in (model.hf_quantizer.get_state_dict_and_metadata(model)[0] for model in (made, loaded, read)):
            for key, tensor in expected["state"].items():
                found = state[key].full_tensor() if hasattr(state[key], "full_tensor") else state[key]
                assert torch.equal(found.float(), tensor.float()), (family, name, key)
        made.save_pretrained(folder / f"{family}-{name}-saved")
        assert_near(logits(made.dequantize()), expected["logits"], allowed(name))


def check_learning(folder: Path, rank: int) -> None:
    """What stands beside packed layers learns as in one process, and a copy of the state is loaded."""
    made, alone = shared(folder, "llama"), model_of("llama")
    for model in (made, alone):
        pack(model, "int4")
        model.train()(prompt(), labels=prompt()).loss.backward()
    for name in ("model.norm", "model.layers.0.input_layernorm"):
        gradients = [model.get_submodule(name).weight.grad for model in (made, alone)]
        assert_near(gradients[0], gradients[1], 1e-5)
    bias = made.model.layers[0].self_attn.q_proj.bias.grad
    whole = alone.model.layers[0].self_attn.q_proj.bias.grad
    assert_near(bias, whole.chunk(RANKS)[rank], 1e-5)
    other = shared(folder, "llama")
    pack(other, "int4")
    for buffer in other.buffers():
        buffer.zero_()
    state = made.eval().state_dict()
    other.load_state_dict(state)
    for name, buffer in made.named_buffers():
        other.get_buffer(name).copy_(buffer)  # the angles of positions, which no state holds
    assert torch.equal(logits(other), logits(made))


def check_bias_of_two(folder: Path, rank: int) -> None:
    """Gate and up in one layer with a bias: a rank has its part of each, also where the plan has spread it as one."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    spread = Shard(0), _StridedShard(dim=0, split_factor=2)
    for placement, name in zip(spread, ("int4", "fp8"), strict=True):
        made, alone = shared(folder, "phi3", plan=GATED), model_of("phi3")
        generator = torch.Generator().manual_seed(8)
        for layer, other in zip(made.model.layers, alone.model.layers, strict=True):
            bias, projection = torch.randn(256, generator=generator), layer.mlp.gate_up_proj
            mesh = projection.weight.device_mesh
            projection.bias = torch.nn.Parameter(distribute_tensor(bias, mesh, [placement], src_data_rank=None))
            other.mlp.gate_up_proj.bias = torch.nn.Parameter(bias)
        for model in (made, alone):
            pack(model, name)
        gate, up = bias.chunk(2)
        own = torch.cat((gate.chunk(RANKS)[rank], up.chunk(RANKS)[rank]))
        assert torch.equal(projection_of(made).bias, own)
        assert torch.equal(made.state_dict()["model.layers.1.mlp.gate_up_proj.bias"].full_tensor(), bias)
        expected = logits(alone)
        assert_near(logits(made), expected, allowed(name))
        assert_near(logits(made.dequantize()), expected, allowed(name))


def projection_of(model: Any) -> Any:
    return model.model.layers[-1].mlp.gate_up_proj


def check_copy(model: Any) -> None:
    """A copy has tensors of its own. It is made of packed layers: torch copies no DTensor on ranks behind the first."""
    before, copied = logits(model), copy.deepcopy(model)
    assert torch.equal(logits(copied), before)
    for tensor in (*copied.buffers(), *copied.parameters()):
        tensor.data.zero_()
    assert torch.equal(logits(model), before)


def check_hooks(folder: Path, rank: int) -> None:
    """A plan of torch's, whose hooks make DTensors of inputs and outputs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (RANKS,))
    cols = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    for name in ("int4", "fp8"):
        made, alone = model_of("llama"), model_of("llama")
        for layer in made.model.layers:
            rows = dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel())
            parallelize_module(layer, mesh, {**dict.fromkeys(cols, ColwiseParallel()), **rows})
        for model in (made, alone):
            pack(model, name)
        assert_near(logits(made), logits(alone), allowed(name))
        check_copy(made)
        for model in (made, alone):
            model(prompt(), labels=prompt()).loss.backward()
        gradients = [model.model.layers[0].input_layernorm.weight.grad for model in (made, alone)]
        assert_near(gradients[0], gradients[1], 1e-5)
        assert_near(logits(made.dequantize()), logits(alone), allowed(name))


def check_faults(folder: Path, rank: int) -> None:
    """A fault of one rank is told in both, and nothing is replaced; so is what no rank can pack."""
    from registry.integrations.transformers import RegistryConfig, restore

    for name in ("int4", "fp8"):
        model = shared(folder, "llama")
        weight: Any = model.model.layers[1].mlp.up_proj.weight
        if rank:
            weight.data.to_local()[0, 0] = float("nan")
        with pytest.raises(InvalidArgumentError, match="up_proj: .*NaN" if rank else "another rank .*could not pack"):
            pack(model, name)
        assert not any(type(module).__name__.startswith("Sharded") for module in model.modules())
    with pytest.raises(InvalidArgumentError, match=r"down_proj: 2 ranks share its 120 columns, 60 each"):
        pack(shared(folder, "odd"), "int4")
    with pytest.raises(InvalidArgumentError, match=r"down_proj: 2 ranks share its 120 columns, 60 each"):
        shared(folder, "odd", quantization_config=RegistryConfig(bits=4))
    for bits in (4, 8):
        config = RegistryConfig(bits, activations="int8" if bits == 8 else None)
        with pytest.raises(InvalidArgumentError, match=r"experts: its plan has a EpDispatchExpertsParallel around it"):
            shared(folder, "mixtral", plan={"tp_plan": "auto", "ep_size": RANKS}, quantization_config=config)
    model = shared(folder, "llama")
    pack(model, "int4")
    with pytest.raises(InvalidArgumentError, match="the model was quantised"):
        restore(model)


def check_foreign(folder: Path, rank: int) -> None:
    """Checkpoints of other libraries are read as in one process; act-order, which no rank has a part of, is told."""
    from registry.integrations.transformers import RegistryConfig

    for kind in ("gptq", "awq"):
        model = shared(folder, kind, quantization_config=RegistryConfig())
        assert_near(logits(model), torch.load(folder / f"{kind}.pt"), 2e-5)
    with pytest.raises(InvalidArgumentError, match="act-order"):
        shared(folder, "shuffled", quantization_config=RegistryConfig())


def check_restoring(folder: Path, rank: int) -> None:
    """Without ``quantize`` the plan's own layers stay, and restore leaves the model as it was."""
    from registry.integrations.transformers import apply, restore

    model = shared(folder, "llama")
    before, kinds = logits(model), [type(one.data) for one in model.parameters()]
    apply(model)
    assert_near(logits(model), before, 2e-6)
    restore(model)
    assert [type(one.data) for one in model.parameters()] == kinds
    assert torch.equal(logits(model), before)


@pytest.mark.thorough
def test_packed_models_of_a_plan_are_those_of_one_process(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for family, name in CASES:
        model = model_of(family)
        model.save_pretrained(tmp_path / family)
        pack(model, name)
        tokens = model.generate(prompt(), max_new_tokens=4, do_sample=False, pad_token_id=0)
        found = {"logits": logits(model), "tokens": tokens, "state": model.state_dict()}
        torch.save(found, tmp_path / f"{family}-{name}.pt")
        model.save_pretrained(tmp_path / f"{family}-{name}")
    in_ranks(tmp_path, check_packing)
    for family, name in CASES:
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / f"{family}-{name}-saved")
        assert_near(logits(saved), torch.load(tmp_path / f"{family}-{name}.pt")["logits"], 2e-5)


@pytest.mark.thorough
def test_ranks_learn_tell_faults_and_are_restored_together(tmp_path: Path) -> None:
    from registry.integrations.transformers import load

    for kind, write in (("gptq", gptq), ("awq", awq)):
        write(tmp_path / kind)
        torch.save(logits(load(tmp_path / kind, dtype=torch.float32)), tmp_path / f"{kind}.pt")
    gptq(tmp_path / "shuffled", shuffled=True)
    for family in ("llama", "mixtral", "phi3"):
        model_of(family).save_pretrained(tmp_path / family)
    tiny("llama", **{**SIZES, "intermediate_size": 120}).save_pretrained(tmp_path / "odd")
    in_ranks(tmp_path, check_learning, check_bias_of_two, check_hooks, check_faults, check_foreign, check_restoring)
