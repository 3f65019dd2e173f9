"""An applied model in several processes: DDP, FSDP2 and tensor-parallel plans train as the plain model does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from registry.errors import InvalidArgumentError

from .tiny_models import prompt, tiny

RANKS = 2
WAYS = ("ddp", "fsdp2", "tensor_parallel")


def wrapped(model: Any, way: str) -> Any:
    """The model, spread over all ranks in one of ``WAYS``."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh(model.device.type, (RANKS,))
    for layer in model.model.layers:
        if way == "fsdp2":
            fully_shard(layer, mesh=mesh)
        else:
            # two heads of queries and one of keys and values to each rank
            cols = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ColwiseParallel())
            cols |= dict.fromkeys(("mlp.gate_proj", "mlp.up_proj"), ColwiseParallel())
            rows = dict.fromkeys(("self_attn.o_proj", "mlp.down_proj"), RowwiseParallel())
            parallelize_module(layer, mesh, {**cols, **rows})
    return fully_shard(model, mesh=mesh) if way == "fsdp2" else model


def losses(model: Any) -> list[float]:
    """The losses of three steps of training, and one without gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)  # some parameters may be distributed
    tokens, found = prompt().to(next(model.parameters()).device), []
    for _ in range(3):
        loss = model(tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    with torch.no_grad():
        found.append(float(model(tokens, labels=tokens, use_cache=False).loss))
    return found


def _rank(rank: int, way: str, folder: str) -> None:
    from registry.integrations.transformers import apply

    torch.set_num_threads(1)
    os.environ["KERNEL_REGISTRY_DB"] = f"{folder}/{rank}.db"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    try:
        applied = tiny("llama")
        apply(applied)
        found = losses(wrapped(applied, way))
    finally:
        dist.destroy_process_group()
    torch.save(found, f"{folder}/losses{rank}")


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_ranks_train_as_one_plain_model_does(way: str, tmp_path: Path) -> None:
    spawn(_rank, (way, str(tmp_path)), nprocs=RANKS)
    expected = losses(tiny("llama"))
    assert expected[0] - expected[2] > 0.01
    for rank in range(RANKS):
        assert torch.load(tmp_path / f"losses{rank}") == pytest.approx(expected, abs=2e-4)


def _packed_rank(rank: int, folder: str) -> None:
    from registry.integrations.transformers import apply

    torch.set_num_threads(1)
    os.environ["KERNEL_REGISTRY_DB"] = f"{folder}/{rank}.db"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    try:
        model = tiny("llama")
        apply(model, quantize="fp8")
        # gloo sends no float8, and what is packed alike need not be sent
        spread = torch.nn.parallel.DistributedDataParallel(model, init_sync=False, broadcast_buffers=False)
        found = losses(spread)
    finally:
        dist.destroy_process_group()
    torch.save(found, f"{folder}/losses{rank}")


@pytest.mark.thorough
def test_ranks_train_norms_beside_float8_as_one_does(tmp_path: Path) -> None:
    from registry.integrations.transformers import apply

    spawn(_packed_rank, (str(tmp_path),), nprocs=RANKS)
    alone = tiny("llama")
    apply(alone, quantize="fp8")
    expected = losses(alone)
    for rank in range(RANKS):
        assert torch.load(tmp_path / f"losses{rank}") == pytest.approx(expected, abs=2e-3)


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process is a group by itself."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def spread_model(family: str = "llama") -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(tiny(family), mesh=init_device_mesh("cpu", (1,)))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("quantize", ["int4", "fp8"])
def test_weights_that_are_spread_by_no_plan_are_not_packed_and_nothing_changes(quantize: Any) -> None:
    from registry.integrations.transformers import apply
    from registry.integrations.transformers.swapping import swapped

    model = spread_model()
    classes = [type(module) for module in model.modules()]
    message = r"the weight of .*q_proj is spread over devices \(DTensor\).*\n.*quantise first: apply"
    with pytest.raises(InvalidArgumentError, match=message):
        apply(model, quantize=quantize)
    assert [type(module) for module in model.modules()] == classes
    assert not list(swapped(model))


@pytest.mark.usefixtures("one_rank")
def test_a_model_in_ddp_is_not_packed() -> None:
    from registry.integrations.transformers import apply

    model = torch.nn.parallel.DistributedDataParallel(tiny("llama"))
    with pytest.raises(InvalidArgumentError, match=r"in a DistributedDataParallel.*\n.*quantise first"):
        apply(model, quantize="int4")


@pytest.mark.usefixtures("one_rank")
def test_a_model_in_ddp_is_applied_and_learns_as_one_without() -> None:
    from registry.integrations.transformers import apply

    alone = tiny("llama")
    model = torch.nn.parallel.DistributedDataParallel(tiny("llama"))
    report = apply(model)
    assert report.replaced["loss"] == report.replaced["attention (eager before)"] == ["module"]
    assert losses(model) == pytest.approx(losses(alone), abs=1e-5)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.filterwarnings("ignore")  # torch's: it is an old way, and one process shards nothing
def test_a_model_whose_weights_fsdp_has_taken_is_told_to_be_applied_first() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    from registry.integrations.transformers import apply
    from registry.integrations.transformers.swapping import swapped

    model = FullyShardedDataParallel(tiny("llama"), device_id=torch.device("cpu"))
    with pytest.raises(InvalidArgumentError, match=r"FullyShardedDataParallel.*\n.*apply first: apply\(model\)"):
        apply(model)
    assert not list(swapped(model))


@pytest.mark.usefixtures("one_rank")
def test_what_fsdp_has_spread_is_left_with_a_reason_that_can_be_read() -> None:
    from registry.integrations.transformers import apply

    report = apply(spread_model())
    told = "its weights are spread over devices (DTensor): apply first, then shard"
    parts = ("norm", "linear", "gated MLP", "loss without logits in training")
    appends = "rotary positions with the append to a static cache"
    assert {f"{part}: {told}" for part in (*parts, appends)} == report.left.keys()
    assert not [reason for reason in report.left if "aten" in reason]
    assert "rotary positions" in report.replaced
    latent = apply(spread_model("deepseek_v3"))
    assert latent.left[f"attention: {told}"] == ["model.layers.0.self_attn"]
    assert not [reason for reason in latent.left if "aten" in reason]
