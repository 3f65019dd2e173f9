"""What holds for every implementation of an op that decodes from a cache of keys and values, on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

import registry
from registry.contract import Op
from registry.correctness.bits import same_bits
from registry.correctness.numerics import judged


@dataclass(frozen=True)
class DecodeCalls:
    """Calls of an op with these dimensions unless others are given.

    ``lengths`` and ``table`` are the places of the sequences' lengths and of the block table among its arguments.
    """

    op: Op
    dims: Mapping[str, Any]
    lengths: int
    table: int

    def drawn(self, kind: str = "normal", **dims: Any) -> tuple[Any, ...]:
        """Arguments of a kind of inputs."""
        problem = self.op.problem_of({**self.dims, **dims})
        return self.op.inputs(problem, kind, torch.Generator("cuda").manual_seed(3))

    def check(self, found: Any, values: tuple[Any, ...]) -> None:
        """Fails unless ``found`` are the results of these arguments."""
        verdict = judged(self.op, self.op.pose(self.op.arguments(values)), found, values)
        assert verdict.ok, verdict

    def is_right(self, name: str, *values: Any, as_of: tuple[Any, ...] | None = None) -> None:
        """The results of a call are right; ``as_of``: arguments that have the same results."""
        with registry.using(**{self.op.name: name}):
            self.check(registry.call(self.op.name, *values), as_of or values)

    def is_right_at(self, name: str, kind: str, each: Iterable[Mapping[str, Any]]) -> None:
        """Calls of a kind of inputs are right, with each of these dimensions."""
        for dims in each:
            self.is_right(name, *self.drawn(kind, **dims))

    def follows_lengths_and_pages(self, name: str) -> None:
        """A captured call reads the lengths and the block table that it finds when it is replayed."""
        values = self.drawn()
        with registry.using(**{self.op.name: name}):
            registry.call(self.op.name, *values)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = registry.call(self.op.name, *values)
        for new in ([2048, 1, 0, 777], [5, 64, 65, 2047], [0, 0, 0, 0]):
            values[self.lengths].copy_(torch.tensor(new))
            values[self.table].copy_(values[self.table].roll(1, 0))
            graph.replay()
            self.check(found, values)

    def has_the_same_bits_each_time(self, name: str, **dims: Any) -> None:
        """One call, made again, has results of the same bits."""
        values = self.drawn(batch=1, lengths="full", **dims)
        with registry.using(**{self.op.name: name}):
            first = registry.call(self.op.name, *values)
            for _ in range(5):
                again = registry.call(self.op.name, *values)
                assert all(same_bits(one, other) for one, other in zip(again, first, strict=True))
