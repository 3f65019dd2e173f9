"""Accuracy of every format of a linear layer, of every implementation that runs here, against float64.

    python -m benchmarks.formats.accuracy [--device cpu] [--sizes 16 512 4096] [--without NAME] [--write FOLDER]

Two errors, as parts of the exact product's root mean square. ``arithmetic``: the result against the float64 product of
the numbers that the call's own tensors stand for, so of the dequantised weight: what the implementation adds.
``format_error``: that product against the one of the numbers before they were rounded: what the format costs, by
whatever implementation. Activations are normal, or have columns 60 times as large. Exits with 1 where the root mean
square of an implementation's error is more than two roundings of the result, and in float32 those of its sums.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import registry
from registry import Device, Implementation, Op
from registry.discovery.answers import refusals
from registry.dispatch.plans.plan import Candidate, build
from registry.problem import Problem

from ..arguments import output_folder
from .cases import FORMATS, KINDS, Case, Make, activations

MOST_ROUNDINGS = 2.0
FEWEST_BITS = 2.0**-13
"""Results with a smaller rounding are float32's, whose sums are rounded as they are."""


@dataclass(frozen=True)
class Accuracy:
    """Errors of one implementation, root mean square and the largest, as parts of the exact product's rms."""

    format: str
    inputs: str
    op: str
    implementation: str
    arithmetic: float
    largest: float
    format_error: float
    unit: float
    k: int

    @property
    def holds(self) -> bool:
        """Whether the implementation adds no more than ``MOST_ROUNDINGS``, and in float32 those of a sum of k terms."""
        sums = math.sqrt(self.k) / 4 if self.unit < FEWEST_BITS else 0.0
        return self.arithmetic <= (MOST_ROUNDINGS + sums) * self.unit


def measured(
    title: str, make: Make, kind: str, sizes: tuple[int, int, int], device: Device, without: Collection[str]
) -> Iterator[Accuracy]:
    """The errors of each implementation at its default configuration; ``without`` names those that are left out."""
    m, n, k = sizes
    generator = torch.Generator(device.torch).manual_seed(5)
    x = activations(m, k, kind, generator)
    weight = torch.randn((n, k), device=device.torch, generator=generator).mul_(k**-0.5)
    case = make(x, weight)
    exact, before = case.exact, x.double() @ weight.double().T
    size = _rms(exact)
    op = registry.ops()[case.op]
    for implementation, y in _results(op, case, device, without):
        error = y.double() - exact
        unit = torch.finfo(y.dtype).eps / 2
        shown = (error.abs().max().item() / size, _rms(exact - before) / _rms(before), unit, k)
        yield Accuracy(title, kind, case.op, implementation, _rms(error) / size, *shown)


def _results(op: Op, case: Case, device: Device, without: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
    values = op.bind(case.given, {})
    arguments = op.arguments(values)
    problem = op.pose(arguments)
    for implementation in registry.implementations(op.name):
        if implementation.name in without or not _runs(implementation, problem, device):
            continue
        candidate = Candidate(implementation, implementation.default(problem, device))
        y: Any = build(op, candidate, problem, arguments, device)(*values)
        yield implementation.name, y


def _runs(implementation: Implementation, problem: Problem, device: Device) -> bool:
    if device.type not in implementation.device_types or refusals(implementation, problem, device):
        return False
    return not implementation.space(problem, device).is_empty


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt())


def report(found: Sequence[Accuracy]) -> str:
    """A markdown table: for each format and kind of activations the errors of the least accurate implementation."""
    lines = [
        "| format | activations | op | format's error | arithmetic, worst implementation | largest | in roundings |"
    ]
    lines.append("|" + " --- |" * 7)
    for title, kind in dict.fromkeys((each.format, each.inputs) for each in found):
        mine = [each for each in found if (each.format, each.inputs) == (title, kind)]
        worst = max(mine, key=lambda each: each.arithmetic)
        cells = [title, kind, worst.op, f"{worst.format_error:.2e}"]
        cells.append(f"{worst.arithmetic:.2e} {worst.implementation} (of {len(mine)})")
        cells += [f"{max(each.largest for each in mine):.2e}", f"{worst.arithmetic / worst.unit:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all formats on a device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs=3, default=(16, 512, 4096), metavar=("M", "N", "K"))
    parser.add_argument("--format", action="append", choices=[*FORMATS], help="only this one; repeatable")
    parser.add_argument("--without", action="append", default=[], help="an implementation to leave out; repeatable")
    parser.add_argument("--write", type=output_folder, help="folder for format_accuracy.json and format_accuracy.md")
    options = parser.parse_args(arguments)
    device, sizes = Device.of(options.device), tuple(options.sizes)
    found: list[Accuracy] = []
    for title in options.format or FORMATS:
        for kind in KINDS:
            found += measured(title, FORMATS[title], kind, sizes, device, options.without)
        print(f"{title}: {len(found)} measurements", file=sys.stderr)
    text = f"m={sizes[0]}, n={sizes[1]}, k={sizes[2]}; {device.name}\n\n{report(found)}\n"
    print(text)
    if options.write:
        _write(options.write, found, text)
    wrong = [each for each in found if not each.holds]
    for each in wrong:
        print(f"{each.format}, {each.inputs}: {each.implementation} errs by {each.arithmetic:.2e}", file=sys.stderr)
    return int(bool(wrong))


def _write(folder: Path, found: Sequence[Accuracy], text: str) -> None:
    (folder / "format_accuracy.md").write_text(f"`python -m benchmarks.formats.accuracy`: {text}")
    rows = ",\n".join(json.dumps(asdict(each)) for each in found)
    (folder / "format_accuracy.json").write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    sys.exit(main())
