"""Attention of packed sequences in Triton: tiles of one sequence's queries, found by the offsets on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from registry import Config, Device, Launch, Problem, Space
from registry.backends.estimate import next_power_of_2
from registry.backends.head_strides import outer_strides
from registry.backends.triton import TritonImplementation

from ..decoder.heads import type_reasons
from ..support import options
from .flash import _nearest, _space
from .kernels import varlen as kernels
from .layouts import MOST_PROGRAMS, MOST_WIDTH, bytes_held, constants_of, scale_of, span_of


def most_tiles(total_q: int, sequences: int, rows: int) -> int:
    """Tiles of ``rows`` queries of a head for any lengths: each sequence may begin one that it does not fill."""
    return total_q // rows + sequences


class PackedAttention(TritonImplementation):
    """A program has a tile of queries of a head and of one sequence and passes over the keys that it sees; fp32 sums.

    It finds its sequence by a search in the offsets, which only the device reads: a call can be captured.
    """

    op = "attention_varlen"
    name = "triton.flash"

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from packed_reasons(problem, device, "q", "k", "v")
        programs = problem.heads * most_tiles(problem.total_q, problem.sequences, 16)
        if programs > MOST_PROGRAMS:
            yield f"up to {programs} programs (limit {MOST_PROGRAMS})"

    def space(self, problem: Problem, device: Device) -> Space:
        """Queries and keys of a tile, up to a sequence's share, warps, and how many tiles of keys are loaded ahead."""
        rows, keys = (
            max(16, min(128, next_power_of_2(-(-total // max(1, problem.sequences)))))
            for total in (problem.total_q, problem.total_k)
        )
        return _space(rows, keys, span_of(problem), bytes_held(problem, device), 0, device)

    def default(self, problem: Problem, device: Device) -> Config:
        """Tiles as large as the GPU's shared memory and registers allow."""
        return _nearest(self.space(problem, device), span_of(problem), not problem.softcap, device)

    def preference(self, problem: Problem, device: Device) -> float:
        """Before a call for each sequence, which waits for the offsets and cannot be captured."""
        return 0.8

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        strides = [stride for name in ("q", "k", "v") for stride in packed_strides(problem, name)]
        tiles = most_tiles(problem.total_q, problem.sequences, config["BLOCK_M"])
        return Launch(
            kernels.attention_varlen,
            grid=(problem.heads * tiles,),
            args=(
                "out", "lse", "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", scale_of(problem), "softcap", tiles,
                problem.sequences, problem.total_q, problem.total_k, *strides,
            ),
            constants={
                **constants_of(problem, device),
                "ROWS": config["BLOCK_M"],
                "KEYS": config["BLOCK_N"],
                "STAGES": config["num_stages"],
            },
            options=options(config),
        )  # fmt: skip


def packed_reasons(problem: Problem, device: Device, *names: str) -> Iterator[str]:
    """Why the tensors ``names`` of packed sequences, or the offsets, cannot be read by the kernels."""
    yield from type_reasons(problem, device)
    for name in names:
        if _strides(problem, name) is None:
            yield f"the elements of a head of {name} are not neighbours"
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        if not problem.traits.contiguous(name):
            yield f"{name} is not contiguous"
    if problem.head_dim > MOST_WIDTH:
        yield f"head_dim={problem.head_dim} (limit {MOST_WIDTH})"


def packed_strides(problem: Problem, name: str) -> tuple[int, ...]:
    """Elements from a token and from a head to the next of a tensor whose heads are known to be readable."""
    found = _strides(problem, name)
    assert found is not None
    return found


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    """Elements from a token and a head of a tensor to the next; None if a head's elements are apart."""
    heads = problem.kv_heads if name in {"k", "v"} else problem.heads
    return outer_strides(problem, name, (heads, problem.head_dim))
