"""What a fault's words tell of the machine."""

from __future__ import annotations

import errno
import os

import pytest
import torch

from registry import CompileError, OutOfResourcesError
from registry.faults.device_faults import broken_context, out_of_memory
from registry.tuner.workers.statuses import status_of


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError(),
    ],
    ids=str,
)
def test_scarce_memory_is_known_in_every_layers_words(fault: Exception) -> None:
    assert out_of_memory(fault)
    assert not broken_context(fault)
    assert status_of(fault)[0] == "out_of_memory"


def test_memory_that_this_machine_does_not_have() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58, dtype=torch.float32, device="cpu")
    assert out_of_memory(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        OutOfResourcesError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
        CompileError("error: use of undeclared identifier 'memory'"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
        torch.AcceleratorError("CUDA error: too many resources requested for launch"),
    ],
    ids=str,
)
def test_a_kernels_own_faults_tell_nothing_of_the_machine(fault: Exception) -> None:
    assert not out_of_memory(fault)
    assert not broken_context(fault)
