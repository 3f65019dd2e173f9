"""An applied model on two GPUs by NCCL: DDP, FSDP2 and tensor-parallel plans train as the plain model on one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if torch.cuda.device_count() < 2:
    pytest.skip("needs two GPUs", allow_module_level=True)
pytest.importorskip("transformers", minversion="5")

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from registry.integrations.transformers import apply

from ..integrations.transformers.test_parallel import RANKS, WAYS, losses, wrapped
from ..integrations.transformers.tiny_models import tiny

DTYPES = {torch.float32: 2e-3, torch.bfloat16: 4e-2}
"""How far a loss may be from the plain model's on one GPU: ranks sum in another order."""


def _rank(rank: int, way: str, folder: str) -> None:
    os.environ["KERNEL_REGISTRY_DB"] = f"{folder}/{rank}.db"
    # multicast through NVLink needs more rights than a container may have
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS, device_id=device
    )  # fmt: skip
    try:
        found = {}
        for dtype in DTYPES:
            applied = tiny("llama", dtype).to(device).train()
            assert "loss without logits in training" in apply(applied).replaced
            found[dtype] = losses(wrapped(applied, way))
    finally:
        dist.destroy_process_group()
    torch.save(found, f"{folder}/losses{rank}")


@pytest.mark.parametrize("way", WAYS)
def test_two_gpus_train_as_one_with_the_plain_model(way: str, tmp_path: Path) -> None:
    spawn(_rank, (way, str(tmp_path)), nprocs=RANKS)
    found = [torch.load(tmp_path / f"losses{rank}") for rank in range(RANKS)]
    for dtype, most in DTYPES.items():
        expected = losses(tiny("llama", dtype).to("cuda:0").train())
        assert expected[0] - expected[2] > 0.01
        for own in found:
            assert own[dtype] == pytest.approx(expected, abs=most)
