"""The experts of a layer in one call: every form of ``fused_moe`` beside torch's own, and vLLM's published times.

    python -m benchmarks.racing.fused_moe [--tokens N ...] [--hidden N] [--intermediate N] [--experts N] [--top-k N]
                                          [--routing NAME] [--dtype NAME] [--rounds N] [--json FILE]

The sizes are Mixtral-8x7B's over two GPUs, which vLLM has published times of (its pull request 24700, on an H100): a
quotation, not measured here. The contestants are what dispatch runs, each implementation of the registry that can be
captured, as ``registry.using`` runs it, ``torch._grouped_mm`` of tokens sorted by expert, and the same compiled. All
are captured into graphs over copies of the weights, so that these come from memory, and take turns; times are µs,
medians of rounds, with the share of the floor that they reach: of the bytes at an H200's copy bandwidth, or of the FLOP
at its product of 8192. Tune first: ``tune --op fused_moe --shapes configs/llm.yaml``. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import registry
from registry.contracts import FUSED_MOE
from registry.contracts.grouped.routing import ROUTING
from registry.problem import Problem

from ..arguments import output_file
from .device_timing import Race

PUBLISHED_US: Mapping[int, float] = {1: 144.0, 64: 483.0, 1024: 833.0}
"""vLLM's times on an H100 by the number of tokens, for 8 experts of 7168 of which a token has 2, hidden 4096."""

BYTES_PER_US, FLOP_PER_US = 4.27e6, 790e6
"""What an H200 was measured to do: copying 2 GiB, and products of 8192 by 8192 by 8192 in bfloat16."""

_PUBLISHED_SIZES = {"hidden": 4096, "intermediate": 7168, "experts": 8, "top_k": 2}


@dataclass(frozen=True)
class MoeTime:
    """The time of one contestant; ``fault`` says why there is none."""

    tokens: int
    contestant: str
    us: float = 0.0
    floor_share: float = 0.0
    fault: str = ""


def sorted_products(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, *_: object
) -> torch.Tensor:
    """What one writes with torch alone: sort, gather, ``torch._grouped_mm`` twice, and the weighted sum; silu."""
    expert, order = ids.view(-1).sort()
    ends = torch.searchsorted(expert, torch.arange(1, len(w13) + 1, device=x.device, dtype=ids.dtype), out_int32=True)
    gate, up = torch._grouped_mm(x[order // ids.shape[1]], w13.mT, offs=ends).chunk(2, -1)
    y = torch._grouped_mm(torch.nn.functional.silu(gate) * up, w2.mT, offs=ends)
    back = torch.empty_like(y)
    back[order] = y
    return (back.view(*ids.shape, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)


def contestants() -> Mapping[str, Callable[..., Any]]:
    """The calls that are raced, by name."""
    forced = ("torch.grouped_mm", "triton.gemm", "triton.gemv")
    return {
        "registry": partial(registry.call, FUSED_MOE.name),
        **{name: partial(_forced, name) for name in forced},
        "torch": sorted_products,
        "torch, compiled": torch.compile(sorted_products, fullgraph=True, dynamic=False),
    }


def _forced(name: str, *values: Any) -> Any:
    with registry.using(fused_moe=name):
        return registry.call(FUSED_MOE.name, *values)


def floor_us(problem: Problem) -> float:
    """The least time on an H200: its bytes, or its FLOP."""
    floor = FUSED_MOE.floor(problem)
    return max(floor.bytes / BYTES_PER_US, floor.flop / FLOP_PER_US)


def measure(problem: Problem, rounds: int) -> list[MoeTime]:
    """Every contestant on one problem, and vLLM's published time where its sizes are these."""
    values = FUSED_MOE.draw(problem, "normal", torch.Generator("cuda").manual_seed(7))
    floor, tokens = floor_us(problem), problem.tokens
    race = Race(contestants(), values, FUSED_MOE.floor(problem).bytes)
    try:
        found = [
            MoeTime(tokens, name, us, floor / us)
            for name, us in ((name, statistics.median(times)) for name, times in race.times(rounds).items())
        ]
        found += [MoeTime(tokens, name, fault=fault) for name, fault in race.faults.items()]
    finally:
        race.close()
        torch.cuda.empty_cache()
    return [*found, *published(problem)]


def published(problem: Problem) -> list[MoeTime]:
    """vLLM's published time of the problem, if there is one."""
    us = PUBLISHED_US.get(problem.tokens)
    if us is None or any(problem.dims[name] != size for name, size in _PUBLISHED_SIZES.items()):
        return []
    return [MoeTime(problem.tokens, "vLLM on an H100 (published)", us)]


def table(found: Sequence[MoeTime]) -> str:
    """A markdown table."""
    lines = ["| tokens | contestant | µs | of an H200's floor |", "|" + " --- |" * 4]
    for one in found:
        share = f"{one.floor_share:.2f}" if one.floor_share else "-"
        lines.append(f"| {one.tokens} | {one.contestant} | {one.fault or f'{one.us:.4g}'} | {share} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Race on this GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 1024], help="default 1 64 1024")
    for name, size in _PUBLISHED_SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size, help=f"default {size}")
    parser.add_argument("--routing", choices=ROUTING, default=ROUTING[0], help=f"default {ROUTING[0]}")
    parser.add_argument("--dtype", default="bfloat16", help="default bfloat16")
    parser.add_argument("--rounds", type=int, default=25, help="default 25")
    parser.add_argument("--json", type=output_file, help="file for the measurements")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("fused_moe: needs a GPU", file=sys.stderr)
        return 2
    dims = {name: getattr(options, name) for name in (*_PUBLISHED_SIZES, "routing", "dtype")}
    found = []
    for tokens in options.tokens:
        found += measure(FUSED_MOE.problem_of({"tokens": tokens, "activation": "silu", **dims}), options.rounds)
    print(f"{', '.join(f'{name}={value}' for name, value in dims.items())}, {torch.cuda.get_device_name()}\n")
    print(table(found))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
