"""A plugin file: square with an illegal memory access, which kills the CUDA context of its process."""

from __future__ import annotations

import registry
from registry.backends import CudaImplementation, CudaKernel

KERNEL_REGISTRY_API = 1

KERNEL = CudaKernel('extern "C" __global__ void wild(float* y) { y[1LL << 40] = 1.0f; }', "wild")


class Illegal(CudaImplementation):
    """Writes far outside its output."""

    op, name = "square", "poison.illegal"

    def launch(self, problem: registry.Problem, config: registry.Config, device: registry.Device) -> registry.Launch:
        return registry.Launch(KERNEL, grid=(1,), args=("y",), options={"block": 1})


@registry.implements("square")
def square_implementations() -> list[registry.Implementation]:
    """The one."""
    return [Illegal()]
