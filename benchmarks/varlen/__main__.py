"""Attention of packed sequences: the registry beside torch's own kernel, FlashAttention, FlashInfer and plain SDPA.

    python -m benchmarks.varlen [--tokens 16384 32768] [--lengths equal uniform skewed] [--sequences 8] [--rounds 20]
                                [--heads 32] [--kv-heads 8] [--head-dim 128] [--dtype bfloat16] [--device cuda]
                                [--without NAME] [--write FOLDER]

Heads are Llama-3.1-8B's, rows are causal, and a sequence has as many queries as keys. All contestants run in one
process and take turns, each round in another order (benchmarks.varlen.timing); a call that can be captured is replayed
as a graph, another one runs as it is. Before anything is timed its output is compared with that of torch's attention,
sequence by sequence. Contestants are what dispatch runs, each implementation of the registry with its default
configuration, and the peers of benchmarks.varlen.peers, which know the lengths in advance, as the registry does not.

Times are medians in µs; TFLOP/s count the pairs that causality leaves; the ratio is the median of a round's time over
dispatch's in that round. On a CPU it runs, too: ``--device cpu --dtype float32 --tokens 256 --rounds 3``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import registry
from benchmarks.arguments import Listed, one_of, output_folder, positive
from benchmarks.racing.device_timing import Call, ratio
from benchmarks.racing.projects import versions
from registry import Device, Problem, RegistryError
from registry.contracts import ATTENTION_VARLEN
from registry.contracts.attention.logits import pairs_within
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build

from . import peers
from .lengths import DISTRIBUTIONS, offsets_of
from .timing import VarlenRace

OURS = "registry"
_SLOW_ON_GPUS = "torch.native"
"""The products in float32, which nobody would choose on a GPU."""


@dataclass(frozen=True)
class VarlenRow:
    """One contestant on one packing; ``fault`` says why there is no time. ``over``: its time over dispatch's."""

    tokens: int
    lengths: str
    longest: int
    contestant: str
    us: float = 0.0
    tflops: float = 0.0
    over: float = 0.0
    graph: bool = False
    fault: str = ""


@dataclass(frozen=True)
class PackedHeads:
    """What all packings of a run have in common."""

    sequences: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def draw(self, lengths: list[int]) -> tuple[Any, ...]:
        """The op's values for sequences of these lengths; one tensor of offsets for queries and keys."""
        generator = torch.Generator(self.device).manual_seed(7)

        def drawn(heads: int) -> torch.Tensor:
            shape = sum(lengths), heads, self.head_dim
            return torch.randn(shape, generator=generator, device=self.device).to(self.dtype)

        offsets = torch.tensor(offsets_of(lengths), dtype=torch.int32, device=self.device)
        q, k, v = drawn(self.heads), drawn(self.kv_heads), drawn(self.kv_heads)
        return q, k, v, offsets, offsets, True, None, 0.0, -1

    def flop(self, lengths: list[int]) -> int:
        """Floating-point operations of both products for the pairs that are seen."""
        return 4 * self.heads * self.head_dim * sum(pairs_within(each, each, True, -1) for each in lengths)


def ours(problem: Problem, values: tuple[Any, ...], device: Device) -> tuple[dict[str, Call], dict[str, str]]:
    """Dispatch, and each implementation that takes the problem; and the faults of defaults that do not build."""
    made: dict[str, Call] = {OURS: registry.op(ATTENTION_VARLEN.name)}
    faults: dict[str, str] = {}
    for each in registry.implementations(ATTENTION_VARLEN.name):
        if device.type not in each.device_types or refusals(each, problem, device):
            continue
        if device.type == "cuda" and each.name == _SLOW_ON_GPUS:
            continue
        try:
            candidate = Candidate(each, each.default(problem, device))
            made[each.name] = build(ATTENTION_VARLEN, candidate, problem, ATTENTION_VARLEN.arguments(values), device)
        except RegistryError as fault:
            faults[each.name] = fault.message.splitlines()[0]
    return made, faults


def measure(
    packed: PackedHeads, tokens: int, distribution: str, rounds: int, without: Sequence[str] = ()
) -> list[VarlenRow]:
    """Every contestant on one packing, the fastest first, and at the end those that did not run."""
    lengths = DISTRIBUTIONS[distribution](tokens, packed.sequences)
    values = packed.draw(lengths)
    problem = ATTENTION_VARLEN.pose(ATTENTION_VARLEN.arguments(values))
    calls, faults = ours(problem, values, Device.of(packed.device))
    others, absent = peers.calls(problem, values, lengths, without)
    right = peers.sequence_by_sequence(problem, values, lengths)(*values)
    calls = {name: call for name, call in {**calls, **others}.items() if name not in without}
    waiting = {each.name for each in registry.implementations(ATTENTION_VARLEN.name) if not each.capturable}
    race = VarlenRace(calls, values, right, waiting)
    times = race.times(rounds)
    eager, faults = race.eager, faults | absent | race.faults
    race.close()
    place = (tokens, distribution, max(lengths))
    return rows(place, times, packed.flop(lengths), eager if packed.device.type == "cuda" else set(times), faults)


def rows(
    place: tuple[int, str, int],
    times: Mapping[str, Sequence[float]],
    flop: int,
    eager: set[str],
    faults: Mapping[str, str],
) -> list[VarlenRow]:
    """The rows of one packing: tokens, distribution and longest sequence."""
    found = []
    for name, each in times.items():
        us = statistics.median(each)
        over = ratio(times, name, OURS) if OURS in times else 0.0
        found.append(VarlenRow(*place, name, us, flop / us / 1e6, over, name not in eager))
    found.sort(key=lambda row: row.us)
    return found + [VarlenRow(*place, name, fault=fault) for name, fault in faults.items()]


def table(found: Sequence[VarlenRow]) -> str:
    """A markdown table of all packings."""
    columns = ("tokens", "lengths", "longest", "contestant", "µs", "TFLOP/s", "µs / registry's", "run")
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for row in found:
        place = f"| {row.tokens} | {row.lengths} | {row.longest} | {row.contestant}"
        if row.fault:
            lines.append(f"{place} | - | - | - | {row.fault} |")
        else:
            run = "graph" if row.graph else "calls"
            lines.append(f"{place} | {row.us:.4g} | {row.tflops:.4g} | {row.over:.3f} | {run} |")
    return "\n".join(lines)


def environment(device: torch.device) -> dict[str, str]:
    """The device and the versions of torch, its driver and the libraries that were called."""
    here = Device.of(device)
    return {"device": here.name, **here.software(), **versions()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=positive, action=Listed, default=[16384, 32768], help="default 16384 32768")
    parser.add_argument(
        "--lengths", type=one_of(tuple(DISTRIBUTIONS)), action=Listed, default=list(DISTRIBUTIONS),
        help="distributions; default all",
    )  # fmt: skip
    for name, size in (("sequences", 8), ("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=positive, default=size, help=f"default {size}")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--without", action="append", default=[], help="a contestant to leave out; may be repeated")
    parser.add_argument("--write", type=output_folder, help="folder for attention_varlen.json and attention_varlen.md")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Race on this device; 2 if there is no GPU and none was asked to be done without, or if sizes do not fit."""
    options = _parser().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("varlen: needs a GPU, or --device cpu", file=sys.stderr)
        return 2
    if min(options.tokens) < options.sequences or options.heads % options.kv_heads:
        print("varlen: expected a token for each sequence, and kv-heads that divide heads", file=sys.stderr)
        return 2
    packed = PackedHeads(
        options.sequences, options.heads, options.kv_heads, options.head_dim, getattr(torch, options.dtype),
        torch.device(options.device),
    )  # fmt: skip
    found: list[VarlenRow] = []
    with torch.inference_mode():
        for tokens in options.tokens:
            for distribution in options.lengths:
                found += measure(packed, tokens, distribution, options.rounds, options.without)
    sizes = f"{packed.sequences} sequences, {packed.heads} heads of {packed.head_dim}, {packed.kv_heads} of keys"
    where = environment(packed.device)
    software = ", ".join(f"{name} {each}" for name, each in where.items() if name != "device")
    text = f"{sizes}, {options.dtype}, causal, {options.rounds} rounds; {where['device']}; {software}\n\n{table(found)}"
    print(text)
    if options.write:
        (options.write / "attention_varlen.md").write_text(text + "\n")
        record = {"sizes": sizes, "dtype": options.dtype, "environment": where, "rows": [asdict(row) for row in found]}
        (options.write / "attention_varlen.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
