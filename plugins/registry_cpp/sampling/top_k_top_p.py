"""top_k_top_p_sampling over rows of neighbouring logits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from registry.backends.cpp import CppImplementation, CppKernel
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from ..base import ELEMENT_TYPES, thread_counts

SAMPLING = CppKernel.read(
    "top_k_top_p_sampling",
    Path(__file__).parents[1] / "kernels" / "simd.hpp",
    Path(__file__).parent / "kernels" / "top_k_top_p.cpp",
)

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 8_192


class CppTopKTopPSampling(CppImplementation):
    """Rows are dealt to the threads; the least kept logit is selected by partitions, without a sort."""

    op = "top_k_top_p_sampling"
    name = "cpp.select"

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if not all(problem.traits.contiguous(name) for name in ("logits", "uniform")):
            yield "logits or uniform is not contiguous"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch sorts the vocabulary: 7 times as slow and more
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """The number of threads, the only parameter."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A thread for each 8192 logits, no more than there are rows."""
        wanted = max(1, min(problem.rows, problem.rows * problem.cols // _ELEMENTS_PER_THREAD))
        return {"threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel; a filter that is not given is a null pointer."""
        return Launch(
            SAMPLING,
            grid=(1,),
            args=(
                *("samples", "logits", "uniform", "top_k", "top_p", _step(problem, "top_k"), _step(problem, "top_p")),
                *(problem.rows, problem.cols, config["threads"]),
            ),
            constants={"ELEMENT": ELEMENT_TYPES[problem.dtype]},
        )


def _step(problem: Problem, name: str) -> int:
    """Elements from the filter of a row to the next: 0 for a number that stands for all rows."""
    traits = problem.traits
    if not problem.dims[name] or traits.contiguous(name) or (arguments := traits.arguments) is None:
        return 1
    return int(arguments.tensor(name).strides[0])


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(threads=thread_counts(device))
