"""topk_softmax and its gradient: several rows of logits a program, in registers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import elements_per_thread, next_power_of_2
from registry.backends.triton import TritonImplementation

from ..kernels import topk_softmax as kernels
from ..support import KEPT, common_reasons, options

MOST_EXPERTS = 4096
MOST_CHOSEN = 64
"""Choices are unrolled, each a pass over the logits in registers."""


class _Router(TritonImplementation):
    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from common_reasons(problem, device)
        if problem.experts > MOST_EXPERTS:
            yield f"{problem.experts} experts do not fit in registers (limit {MOST_EXPERTS})"
        if problem.top_k > MOST_CHOSEN:
            yield f"top_k={problem.top_k} (limit {MOST_CHOSEN})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Rows a program, and warps: between 2 and 32 logits a thread."""
        return _space(_span(problem.experts), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """About 8 logits a thread of one warp, or of as many as a row needs."""
        return _usual(_span(problem.experts), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above torch's implementations, which sort the logits: this one is a single launch."""
        return 1.0

    def constants(self, problem: Problem, config: Config) -> dict[str, Any]:
        """The constants that both kernels are compiled with."""
        return {
            "EXPERTS": problem.experts,
            "SPAN": _span(problem.experts),
            "TOP": problem.top_k,
            "RENORMALIZE": problem.renormalize,
            "SIGMOID": problem.scoring == "sigmoid",
            "TOKENS": config["tokens_per_program"],
        }


class RowTopkSoftmax(_Router):
    """Each choice is the maximum of what is left."""

    op = "topk_softmax"
    name = "triton.row"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            kernels.topk_softmax,
            grid=(-(-problem.tokens // config["tokens_per_program"]),),
            args=("weights", "experts", "router_logits", problem.tokens),
            constants={**self.constants(problem, config), "TOP_SPAN": next_power_of_2(problem.top_k)},
            options=options(config),
        )


class RowTopkSoftmaxBackward(_Router):
    """The scores again, and each gradient in its expert's column."""

    op = "topk_softmax_backward"
    name = "triton.row"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        return Launch(
            kernels.topk_softmax_backward,
            grid=(-(-problem.tokens // config["tokens_per_program"]),),
            args=("grad_router_logits", "grad_weights", "router_logits", "experts", problem.tokens),
            constants=self.constants(problem, config),
            options=options(config),
        )


def _span(experts: int) -> int:
    return max(2, next_power_of_2(experts))


@lru_cache(maxsize=KEPT)
def _space(span: int, device: Device) -> Space:
    def share(config: Config) -> bool:
        each = elements_per_thread(config["tokens_per_program"] * span, config["num_warps"], device)
        return each <= 32 and (each >= 2 or config["num_warps"] == 1)

    return Space(tokens_per_program=[1, 2, 4, 8, 16, 32], num_warps=[1, 2, 4, 8]).require(
        "2 to 32 logits a thread", share
    )


@lru_cache(maxsize=KEPT)
def _usual(span: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        each = elements_per_thread(config["tokens_per_program"] * span, config["num_warps"], device)
        return abs(each - 8), config["num_warps"]

    return min(_space(span, device).configs, key=distance)
