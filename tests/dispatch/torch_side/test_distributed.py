"""DTensors: torch spreads the reference over the mesh; a plain weight beside them is whole on every device."""

from __future__ import annotations

from pathlib import Path

import pytest

from ... import fresh

PROGRAM = """
import os, sys, warnings
import torch, torch.distributed as dist, torch.multiprocessing as mp
import registry, torch._dynamo, torch.distributed.tensor

def work(rank, store):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
    warnings.simplefilter("ignore", registry.DispatchWarning)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    x, weight = torch.randn(6, 32), torch.randn(32, requires_grad=True)
    spread = distribute_tensor(x, mesh, [Shard(0)])
    y = registry.call("rms_norm", spread, weight)
    assert isinstance(y, DTensor) and y.placements == (Shard(0),), y
    expected = torch.nn.functional.rms_norm(x, (32,), weight, eps=1e-6)
    torch.testing.assert_close(y.full_tensor(), expected)
    grad, = torch.autograd.grad(y.full_tensor().square().sum(), weight)
    wanted, = torch.autograd.grad(expected.square().sum(), weight)
    torch.testing.assert_close(grad, wanted)
    same = registry.call("rms_norm", spread, distribute_tensor(weight.detach(), mesh, [Replicate()]))
    torch.testing.assert_close(same.full_tensor(), expected)
    torch.testing.assert_close(registry.call("softmax", spread).full_tensor(), x.softmax(-1))
    whole = distribute_tensor(weight.detach(), mesh, [Replicate()])
    for op, arguments in (("vector_add", (spread, x)), ("rms_norm", (x, whole))):
        try:
            registry.call(op, *arguments)
        except registry.InvalidArgumentError as fault:
            assert "is a plain tensor beside a DTensor" in fault.message and "distribute_tensor(" in fault.hint, fault
        else:
            raise AssertionError(f"{op} took a plain tensor beside a DTensor")
    # packed weights: their reference makes tensors of its own, which torch does not spread
    packed = registry.quantize(torch.randn(48, 32).bfloat16(), bits=4, group_size=32)
    halves, everywhere = x.bfloat16().requires_grad_(), [Replicate()]
    expected = registry.call("gemm_int4", halves, packed)
    wanted, = torch.autograd.grad(expected.float().square().sum(), halves)
    replicated = distribute_tensor(halves.detach(), mesh, everywhere).requires_grad_()
    y = registry.call("gemm_int4", replicated, packed)
    assert isinstance(y, DTensor) and y.placements == (Replicate(),), y
    torch.testing.assert_close(y.full_tensor(), expected, rtol=2e-2, atol=2e-2)
    grad, = torch.autograd.grad(y.full_tensor().float().square().sum(), replicated)
    assert (grad.full_tensor() - wanted).norm() < 0.02 * wanted.norm()
    offsets = DTensor.from_local(torch.tensor([0, 2, 6], dtype=torch.int32), mesh, everywhere)
    experts = torch.randn(2, 8, 32)
    y = registry.call("grouped_gemm", distribute_tensor(x, mesh, everywhere), experts, offsets)
    expected = torch.cat([x[:2] @ experts[0].T, x[2:] @ experts[1].T])
    torch.testing.assert_close(y.full_tensor(), expected)
    try:
        registry.call("gemm_int4", distribute_tensor(halves.detach(), mesh, [Shard(0)]), packed)
    except registry.InvalidArgumentError as fault:
        assert "gemm_int4: torch cannot spread it over a mesh" in fault.message, fault
        assert "redistribute(" in fault.hint and "full_tensor()" in fault.hint, fault
    else:
        raise AssertionError("gemm_int4 took rows that are spread")
    dist.destroy_process_group()

if __name__ == "__main__":
    # forked, so that both have what was imported once
    mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.mark.timeout(300)
def test_a_plain_weight_beside_a_dtensor_counts_as_replicated_and_anything_else_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = fresh.run(program, tmp_path / "store", limit_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
