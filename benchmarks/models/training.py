"""A training step of a decoder: transformers as it is, by Liger's kernels, and by the registry's ``apply``.

    python -m benchmarks.models.training [--batches 4x2048] [--layers 16] [--forms eager compile]
                                         [--ways plain liger apply] [--time-limit SECONDS]
                                         [--write benchmarks/results/h200/models]

The model has Llama-3.2-1B's widths, its tied embeddings and random weights in bfloat16. A step is forward and backward
of so many sequences of so many tokens, from no gradients to the gradients of all parameters; an optimizer's step, which
all ways have in common, is no part of it. ``plain`` is transformers with torch's attention, ``liger`` what
``apply_liger_kernel_to_llama`` makes of it (``pip install liger-kernel``), ``apply`` what
``registry.integrations.transformers.apply`` does.

Times are milliseconds of the host for a step among several, the median of rounds in which the ways take turns;
``x plain`` is the ratio to plain in the same form. ``peak`` is the GPU memory in GiB that a step needs at most:
weights, activations, gradients and all that is held between (``torch.cuda.max_memory_allocated`` without the other
ways' models). ``loss`` is that of the first step, of equal weights and tokens. A way that fails says why, and costs the
others nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from registry import Device

from .timing import Step, add_options, milliseconds, ratio
from .training_ways import LLAMA_1B, SMALL, Trained

FORMS = ("eager", "compile")
WAYS = ("plain", "liger", "apply")
WARM_UP, STEPS = 3, 3


@dataclass(frozen=True)
class TrainingRow:
    """A step of one way in one form, ``ms`` None where it failed, with the reason in ``fault``.

    ``peak_gib`` is None without a GPU.
    """

    form: str
    batch: int
    length: int
    way: str
    ms: float | None
    ratio: float | None = None
    peak_gib: float | None = None
    loss: float | None = None
    fault: str = ""


def rows_of(form: str, batch: int, length: int, models: dict[str, Trained], count: int) -> list[TrainingRow]:
    """The rows of one form and one batch."""
    steps: dict[str, Step] = {}
    told: dict[str, tuple[float | None, float]] = {}
    failed: list[TrainingRow] = []
    generator = torch.Generator().manual_seed(1)
    for way, trained in models.items():
        began, model = time.perf_counter(), trained.model
        tokens = torch.randint(3, model.config.vocab_size, (batch, length), generator=generator.manual_seed(1))
        try:
            step = trained.step(form, tokens.to(model.device))
            losses = [float(step()) for _ in range(WARM_UP)]
            told[way] = trained.peak_gib(step), losses[0]
            steps[way] = step
        except Exception as fault:  # one way's fault is its row
            failed.append(TrainingRow(form, batch, length, way, None, fault=f"{type(fault).__name__}: {fault}"[:300]))
        trained.forget()
        print(f"  {form} {batch}x{length} {way}: ready in {time.perf_counter() - began:.1f} s", flush=True)
    times = _times(steps, models, count)
    rows = [
        TrainingRow(form, batch, length, way, statistics.median(each), ratio(each, times.get("plain")), *told[way])
        for way, each in times.items()
    ]
    return [*rows, *failed]


def _times(steps: dict[str, Step], models: dict[str, Trained], count: int) -> dict[str, list[float]]:
    """Milliseconds by way; between its turns a way holds no gradients."""

    def turn(way: str) -> Step:
        def rewind() -> None:
            for other in models.values():
                other.forget()
            steps[way]()

        return rewind

    return milliseconds(steps, {way: turn(way) for way in steps}, count)


def shown(row: TrainingRow) -> str:
    """A row as text."""
    begin = f"{row.form:8} {row.batch}x{row.length:<6} {row.way:6} "
    if row.ms is None:
        return begin + row.fault
    cells = [f"{row.ms:9.2f} ms"]
    cells += [] if row.ratio is None else [f"x plain {row.ratio:5.3f}"]
    cells += [] if row.peak_gib is None else [f"peak {row.peak_gib:6.2f} GiB"]
    return begin + "  ".join([*cells, f"loss {row.loss:.5f}"])


def built(options: argparse.Namespace, device: torch.device) -> tuple[dict[str, Trained], list[TrainingRow]]:
    """The models by way, and a row for each that could not be made."""
    models, failed = {}, []
    for way in options.ways:
        try:
            models[way] = Trained(way, SMALL if options.smoke else LLAMA_1B, options.layers, device)
        except Exception as fault:  # a way that is not installed is a row that says so
            told = f"{type(fault).__name__}: {fault}"[:300]
            failed += [
                TrainingRow(form, batch, length, way, None, fault=told)
                for batch, length in options.batches
                for form in options.forms
            ]
    return models, failed


def measure(options: argparse.Namespace, device: torch.device) -> list[TrainingRow]:
    """All rows, printed as they come; forms that begin after the time limit are left out."""
    began = time.perf_counter()
    models, rows = built(options, device)
    print("\n".join(map(shown, rows)), flush=True)
    for batch, length in options.batches:
        for form in options.forms:
            if options.time_limit and time.perf_counter() - began > options.time_limit:
                print(f"left out: {form} {batch}x{length}", flush=True)
                continue
            found = rows_of(form, batch, length, models, options.steps)
            print("\n".join(map(shown, found)), flush=True)
            rows += found
            torch._dynamo.reset()
            gc.collect()
    return rows


def write(folder: Path, rows: Sequence[TrainingRow], options: argparse.Namespace, device: Device) -> None:
    """Write ``training.json`` and ``training.txt`` into the folder."""
    environment = {
        "device": str(device),
        **device.software(),
        "transformers": transformers.__version__,
        "liger-kernel": _version("liger-kernel"),
        "layers": options.layers,
    }
    record = {"environment": environment, "rows": [asdict(row) for row in rows]}
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [f"{name:12} {value}" for name, value in environment.items()]
    (folder / "training.txt").write_text("\n".join([*lines, "", *map(shown, rows)]) + "\n")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def batch_and_length(text: str) -> tuple[int, int]:
    """The two numbers of e.g. 4x2048. Raises ArgumentTypeError."""
    batch, _, length = text.partition("x")
    if not (batch.isdecimal() and length.isdecimal() and int(batch) > 0 and int(length) > 1):
        raise argparse.ArgumentTypeError(f"{text!r}: expected sequences and tokens of each, e.g. 4x2048")
    return int(batch), int(length)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument(
        "--batches", type=batch_and_length, nargs="+", default=[(4, 2048)], metavar="BxT",
        help="sequences and tokens of each; default 4x2048",
    )  # fmt: skip
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    add_options(parser, "training", STEPS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[TrainingRow]:
    """Measure and print."""
    options = parsed(arguments)
    device = Device.best()
    rows = measure(options, device.torch)
    if options.write:
        write(options.write, rows, options, device)
    return rows


if __name__ == "__main__":
    main()
