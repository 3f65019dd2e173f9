"""top_k_top_p_sampling without a sort, in two forms: a row a program, and few rows split over programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from registry import Config, Device, Launch, Problem, Space, TensorSpec
from registry.backends.estimate import elements_per_thread, next_power_of_2, threads
from registry.backends.triton import TritonImplementation

from ..decoder.heads import type_reasons
from ..support import KEPT, options
from .kernels import split_rows
from .kernels import top_k_top_p as kernels

MOST_COLS = 2**26
"""Columns are counted in 32 bits, and their weights added up in fp32."""
LEAST_SPLIT = 4096
"""Columns of a row that is worth a second launch."""

_LISTS, _JOINED = ("candidates", "columns"), ("joined", "joined_columns")
_SPLITS = (8, 16, 32, 64)
_SPLIT_SPACE = Space(SPLITS=_SPLITS, BUCKETS=[8, 16], num_warps=[4, 8, 16])


class _Sampling(TritonImplementation):
    op = "top_k_top_p_sampling"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from type_reasons(problem, device)
        if not all(problem.traits.contiguous(name) for name in ("logits", "uniform")):
            yield "logits or uniform is not contiguous"
        if problem.cols > MOST_COLS:
            yield f"rows of {problem.cols} (limit {MOST_COLS})"


class LoopedTopKTopPSampling(_Sampling):
    """A program finds the least kept logit of its row in rounds over ever fewer candidates, then draws from the row."""

    name = "triton.looped"

    def space(self, problem: Problem, device: Device) -> Space:
        """Columns a step, buckets of a round, warps, and steps that are loaded ahead."""
        return _space(_longest_step(problem), device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Steps of 8 columns a thread, with 16 warps for long rows."""
        return _usual(_longest_step(problem), device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Above torch's preference, since torch sorts every row."""
        return 1.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        if not (problem.top_k or problem.top_p):
            return {}
        return {"candidates": TensorSpec.contiguous((problem.rows, problem.cols), torch.int32)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        filtered = problem.top_k or problem.top_p
        steps = (_step(problem, "top_k"), _step(problem, "top_p"))
        return Launch(
            kernels.looped_sampling,
            grid=(problem.rows,),
            args=(
                *(("samples", "candidates") if filtered else ("samples",)),
                *("logits", "uniform", "top_k", "top_p", *steps, problem.cols),
            ),
            constants={
                **({} if filtered else {"candidates": None}),
                "BUCKETS": config["BUCKETS"],
                "PART": _part(config, device),
                "BLOCK": config["BLOCK"],
                "STAGES": config["STAGES"],
            },
            options=options(config),
        )


class SplitTopKTopPSampling(_Sampling):
    """The largest logits of each part of a row by a program of its own, and a second launch that samples from these."""

    name = "triton.split_rows"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from super().unsupported(problem, device)
        if not problem.top_k:
            yield "without top_k every part of a row is kept whole"
        if problem.cols < LEAST_SPLIT:
            yield f"a row of {problem.cols} is too short to split (from {LEAST_SPLIT})"
        if problem.rows >= 2 * device.multiprocessors:
            yield f"{problem.rows} rows keep every SM busy"

    def space(self, problem: Problem, device: Device) -> Space:
        """Parts of a row, buckets of a round, and warps of both launches."""
        return _SPLIT_SPACE

    def default(self, problem: Problem, device: Device) -> Config:
        """Up to 64 parts a row, as many as keep every SM busy, and 8 warps."""
        wanted = max(_SPLITS[0], device.multiprocessors // max(problem.rows, 1))
        return {"SPLITS": max(count for count in _SPLITS if count <= wanted), "BUCKETS": 16, "num_warps": 8}

    def preference(self, problem: Problem, device: Device) -> float:
        """First where the form of one program a row leaves most SMs without work."""
        return 2.0 if 4 * problem.rows <= device.multiprocessors else 0.5

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        shape = (problem.rows, problem.cols)
        return {
            **{name: TensorSpec.contiguous(shape, torch.int32) for name in (*_LISTS, *_JOINED, "rounds")},
            "counts": TensorSpec.contiguous((problem.rows, config["SPLITS"]), torch.int32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Sequence[Launch]:
        each = {"BLOCK": min(8 * threads(config["num_warps"], device), 2048), **config}
        steps = {"BLOCK": each["BLOCK"], "PART": _part(each, device), "STAGES": 1}
        constants = {"SPLITS": config["SPLITS"], "BUCKETS": config["BUCKETS"], **steps}
        k_step, p_step = _step(problem, "top_k"), _step(problem, "top_p")
        return [
            Launch(
                split_rows.partial_sampling,
                grid=(problem.rows * config["SPLITS"],),
                args=(*_LISTS, "counts", "logits", "top_k", k_step, problem.cols),
                constants=constants,
                options=options(config),
            ),
            Launch(
                split_rows.combine_sampling,
                grid=(problem.rows,),
                args=(
                    *("samples", *_LISTS, *_JOINED, "rounds", "counts", "uniform", "top_k", "top_p"),
                    *(k_step, p_step, problem.cols),
                ),
                constants={**constants, "SPAN": each["BLOCK"]},
                options=options(config),
            ),
        ]


def _step(problem: Problem, name: str) -> int:
    """Elements from the filter of a row to the next: 0 for a number that stands for all rows."""
    traits = problem.traits
    if not problem.dims[name] or traits.contiguous(name) or (arguments := traits.arguments) is None:
        return 1
    return int(arguments.tensor(name).strides[0])


def _longest_step(problem: Problem) -> int:
    return min(8192, max(128, next_power_of_2(problem.cols)))


def _part(config: Config, device: Device) -> int:
    """Columns that are put in buckets at a time: a thread has 32 sums, or 16 where it has 64 registers."""
    sums = 16 if config["num_warps"] > 16 else 32
    return int(min(config["BLOCK"], max(32, sums * threads(config["num_warps"], device) // config["BUCKETS"])))


@lru_cache(maxsize=KEPT)
def _space(longest: int, device: Device) -> Space:
    def columns(config: Config) -> bool:
        each = elements_per_thread(config["BLOCK"], config["num_warps"], device)
        return each <= 8 and (each >= 4 or config["BLOCK"] == longest)

    blocks = [block for block in (128, 256, 512, 1024, 2048, 4096, 8192) if longest // 8 <= block <= longest]
    space = Space(BLOCK=blocks, BUCKETS=[8, 16, 32], num_warps=[4, 8, 16, 32], STAGES=[1, 3])
    return space.require("4 to 8 columns a thread", columns)


@lru_cache(maxsize=KEPT)
def _usual(longest: int, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        warps = 16 if longest > 1024 else 4
        return (
            abs(config["num_warps"] - warps),
            -config["BLOCK"],
            abs(config["BUCKETS"] - 16),
            -config["STAGES"],
        )

    return min(_space(longest, device).configs, key=distance)
