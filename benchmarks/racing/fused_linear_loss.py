"""The loss of a language model's last layer, and its gradients: time and peak memory beside torch's and Liger's.

    python -m benchmarks.racing.fused_linear_loss [--rows N] [--k N] [--cols N] [--dtype NAME] [--rounds N]
                                                  [--json FILE]

The forms are ``fused_linear_cross_entropy`` as dispatch runs it, torch's linear layer and cross-entropy, the same under
torch.compile, and LigerFusedLinearCrossEntropyLoss (``pip install liger-kernel``). Times are milliseconds between
events, medians of rounds in which the forms take turns. ``peak`` is the memory above what the arguments take, in MiB;
for forward and backward it holds the gradients. Needs a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import registry

from ..arguments import output_file

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The mean loss of x [rows, k], weight [cols, k] and target [rows]."""

NAME = "fused_linear_cross_entropy"


@dataclass(frozen=True)
class LossForm:
    """Times of one form in milliseconds and its peak memory in MiB; ``fault`` says why there are none."""

    form: str
    forward_ms: float = 0.0
    both_ms: float = 0.0
    forward_peak_mib: float = 0.0
    both_peak_mib: float = 0.0
    fault: str = ""


def of_torch(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """torch's linear layer and its cross-entropy."""
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), target)


def of_registry(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What dispatch runs."""
    loss: torch.Tensor = registry.call(NAME, x, weight, target)[0]
    return loss


def of_liger(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Liger's module, which computes gradients with the loss where they are needed."""
    loss: torch.Tensor = importlib.import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss()(
        weight, x, target
    )
    return loss


def forms() -> Mapping[str, Loss]:
    """All forms by name."""
    compiled: Loss = torch.compile(of_torch, fullgraph=True, dynamic=False)
    return {"registry": of_registry, "torch": of_torch, "torch.compile": compiled, "Liger": of_liger}


def forward(loss: Loss, values: Sequence[torch.Tensor]) -> None:
    """The loss alone, which needs no gradient."""
    with torch.no_grad():
        loss(*values)


def both(loss: Loss, values: Sequence[torch.Tensor]) -> None:
    """The loss, and its gradients by x and weight, which are dropped."""
    x, weight, target = values
    torch.autograd.grad(loss(x, weight, target), (x, weight))


def measure(rows: int, k: int, cols: int, dtype: torch.dtype, rounds: int) -> list[LossForm]:
    """Every form on one problem; the first call of each, which compiles, is not timed."""
    generator = torch.Generator("cuda").manual_seed(7)
    x, weight = (torch.randn(size, k, device="cuda", generator=generator).to(dtype) for size in (rows, cols))
    weight.mul_(k**-0.5)
    values = (x.requires_grad_(), weight.requires_grad_(), torch.randint(cols, (rows,), device="cuda"))
    able, found = {}, []
    for name, loss in forms().items():
        try:
            able[name] = (loss, _peak(forward, loss, values), _peak(both, loss, values))
        except Exception as fault:  # a form that is not installed, or has too little memory, is a row that says so
            found.append(LossForm(name, fault=f"{type(fault).__name__}: {fault}".splitlines()[0][:160]))
            torch.cuda.empty_cache()
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in able}
    for _ in range(rounds):
        for name, (loss, *_peaks) in able.items():
            for step, taken in zip((forward, both), times[name], strict=True):
                taken.append(_milliseconds(step, loss, values))
    for name, (_, alone, whole) in able.items():
        forward_ms, both_ms = map(statistics.median, times[name])
        found.append(LossForm(name, forward_ms, both_ms, alone, whole))
    return found


def _peak(step: Callable[..., None], loss: Loss, values: Sequence[torch.Tensor]) -> float:
    step(loss, values)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(loss, values)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _milliseconds(step: Callable[..., None], loss: Loss, values: Sequence[torch.Tensor]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step(loss, values)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def table(found: Sequence[LossForm]) -> str:
    """A markdown table."""
    lines = ["| form | forward ms | peak MiB | forward and backward ms | peak MiB |", "|" + " --- |" * 5]
    for one in found:
        numbers = (one.forward_ms, one.forward_peak_mib, one.both_ms, one.both_peak_mib)
        cells = [one.fault, "", "", ""] if one.fault else [f"{number:.5g}" for number in numbers]
        lines.append(f"| {' | '.join([one.form, *cells])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the forms on this GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192, help="tokens; default 8192")
    parser.add_argument("--k", type=int, default=4096, help="width of the model; default 4096")
    parser.add_argument("--cols", type=int, default=128256, help="the vocabulary; default 128256")
    parser.add_argument("--dtype", default="bfloat16", help="default bfloat16")
    parser.add_argument("--rounds", type=int, default=15, help="default 15")
    parser.add_argument("--json", type=output_file, help="file for the measurements")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("fused_linear_loss: needs a GPU", file=sys.stderr)
        return 2
    found = measure(options.rows, options.k, options.cols, getattr(torch, options.dtype), options.rounds)
    print(f"rows={options.rows}, k={options.k}, cols={options.cols}, {options.dtype}, {torch.cuda.get_device_name()}\n")
    print(table(found))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
