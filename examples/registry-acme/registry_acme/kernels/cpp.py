"""A base for this package's C++ kernels: they take float32 in memory, and the number of threads is tunable."""

from __future__ import annotations

from collections.abc import Iterator

from registry import Config, Device, Problem, Space
from registry.backends import CppImplementation


class OnThreads(CppImplementation):
    """Tensors of ``dtypes``, row-major; ``threads`` share the work."""

    dtypes = frozenset({"float32"})

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Other dtypes and layouts, and a machine without a compiler."""
        yield from super().unsupported(problem, device)
        if problem.dtype not in self.dtypes:
            yield f"dtype is {problem.dtype}; this kernel is for {', '.join(sorted(self.dtypes))}"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"

    def space(self, problem: Problem, device: Device) -> Space:
        """One thread, or as many as there are cores."""
        return Space(threads=sorted({1, device.multiprocessors}))

    def default(self, problem: Problem, device: Device) -> Config:
        """All cores."""
        return {"threads": device.multiprocessors}
