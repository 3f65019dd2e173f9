"""A plugin: an op with a list of tensors, named values, a distribution, and indices that it compares itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

import registry
from registry import Arguments, Floor, Implementation, Op, Problem, Tolerance

KERNEL_REGISTRY_API = 1
ORDERS = ("largest", "smallest")
SKEWS = ("uniform", "one_hot", "zipf")


def reference(parts: tuple[torch.Tensor, ...], top: int, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``top`` scores and their places, per row, of the sum of ``parts``."""
    total = torch.stack(list(parts)).sum(0)
    found = total.topk(top, -1, largest=order == "largest")
    return found.values, found.indices


def problem(arguments: Arguments) -> Mapping[str, Any]:
    parts = arguments.tensors_of("parts")
    rows, cols = parts[0].shape
    return {
        "rows": rows,
        "cols": cols,
        "parts": len(parts),
        "top": arguments.integer("top"),
        "order": arguments.text("order"),
        "dtype": str(parts[0].dtype).removeprefix("torch."),
    }


def inputs(problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
    shape = problem.rows, problem.cols
    parts = [torch.randint(-4, 5, shape, generator=generator, device=generator.device) for _ in range(problem.parts)]
    scores = [part.to(problem.torch_dtype) for part in parts]
    if problem.skew == "one_hot":
        scores[0][:, 0] += 100.0
    if kind == "ties":
        scores = [score.round().clamp(-1, 1) for score in scores]
    return scores, problem.top, problem.order


def same_scores(
    problem: Problem,
    values: Mapping[str, Any],
    results: Mapping[str, torch.Tensor],
    references: Mapping[str, torch.Tensor],
) -> Iterator[str]:
    """Where scores tie any of their places is right."""
    places = results["places"]
    if bool(((places < 0) | (places >= problem.cols)).any()):
        yield f"a place is outside of 0 to {problem.cols - 1}"
        return
    total = torch.stack(list(values["parts"])).to(torch.float64).sum(0)
    if not torch.equal(total.gather(-1, places), references["scores"]):
        yield "a place does not hold the score that belongs there"
    if any(len(set(row)) < len(row) for row in places.tolist()):
        yield "a place is named twice"


TOP = Op(
    name="acme::top",
    schema='acme::top(Tensor[] parts, int top, str order="largest") -> (Tensor scores, Tensor places)',
    version=1,
    reference=reference,
    problem=problem,
    inputs=inputs,
    floor=lambda problem: Floor(bytes=problem.rows * problem.cols * problem.parts * 4, flop=problem.rows),
    tolerance=Tolerance({"float32": 1e-6}, {"float32": 0.0}, lambda problem, reference: reference.abs()),
    compare={"places": same_scores},
    static=frozenset({"cols", "parts", "top", "dtype"}),
    dynamic=frozenset({"rows"}),
    choices={"order": ORDERS},
    distributions={"skew": SKEWS},
    kinds=("normal", "ties"),
    examples=tuple(
        {"rows": 5, "cols": 17, "parts": parts, "top": 3, "order": order, "dtype": "float32", "skew": skew}
        for parts in (1, 3)
        for order in ORDERS
        for skew in ("uniform", "one_hot")
    ),
)


class LastOfTies(Implementation):
    """Names the last of equal scores, where torch names any."""

    op = "acme::top"
    name = "acme.last"
    device_types = frozenset({"cpu"})
    returns_outputs = True

    def bind(self, problem: Any, config: Any, device: Any, built: Any) -> Any:
        def run(outputs: Any, arguments: Any, scratch: Any) -> Any:
            parts, top, order = arguments
            total = torch.stack(list(parts)).sum(0).flip(-1)
            values, places = total.sort(dim=-1, descending=order == "largest", stable=True)
            return values[:, :top].contiguous(), self.places(total.shape[-1] - 1 - places[:, :top]).contiguous()

        return run

    def places(self, right: torch.Tensor) -> torch.Tensor:
        return right


@registry.defines
def acme_ops() -> list[Op]:
    return [TOP]


@registry.implements("acme::top")
def acme_top() -> list[Implementation]:
    return [LastOfTies()]
