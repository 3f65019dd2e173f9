"""fused_add_rms_norm over rows of neighbouring elements."""

from __future__ import annotations

from functools import lru_cache

from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from .base import ELEMENT_TYPES, DenseImplementation, kernel, thread_counts

FUSED_ADD_RMS_NORM = kernel("fused_add_rms_norm", "rows.hpp", "fused_add_rms_norm.cpp")

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 8_192


class CppFusedAddRmsNorm(DenseImplementation):
    """Rows are dealt to the threads; a row's sums are read again from the caches."""

    op = "fused_add_rms_norm"
    name = "cpp.rows"
    mixed = True

    def preference(self, problem: Problem, device: Device) -> float:
        # torch reads the sum again for each of the norm's parts: twice as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Vectors in flight, and threads."""
        return _space(min(problem.rows, thread_counts(device)[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A thread for each 8192 elements, no more than rows."""
        wanted = max(1, min(problem.rows, problem.rows * problem.cols // _ELEMENTS_PER_THREAD))
        return {"unroll": 4, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel; a weight that is not given is a null pointer."""
        element = ELEMENT_TYPES[problem.dtype]
        return Launch(
            FUSED_ADD_RMS_NORM,
            grid=(1,),
            args=("x", "residual", "weight", "eps", "offset", problem.rows, problem.cols, config["threads"]),
            constants={
                "ELEMENT": element,
                "WEIGHT": "float" if problem.traits["mixed"] else element,
                "UNROLL": config["unroll"],
            },
        )


@lru_cache(maxsize=1024)
def _space(most_threads: int, device: Device) -> Space:
    return Space(unroll=[1, 4], threads=thread_counts(device)).require(
        "no more threads than rows", lambda config: config["threads"] <= most_threads
    )
