"""A decoder of transformers with and without ``apply``, and with other projects' layers: decode steps and prompts.

    python -m benchmarks.models [--model llama] [--layers 32] [--batches 1 16] [--time-limit SECONDS]
                                [--forms eager graph compile reduce-overhead prefill]
                                [--ways plain apply int4 fp8 torchao gemlite humming torchao-fp8]
                                [--write benchmarks/results/h200/models]

The model has Llama-3.1-8B's widths, or Mixtral-8x7B's, and random weights in bfloat16. A decode step is one token for
each sequence over a StaticCache of 1024, of which 512 are filled; a prompt is 512 tokens into an empty one. Ways:

plain     transformers with torch's attention
apply     what ``registry.integrations.transformers.apply`` makes of it
int4 ...  the same with ``quantize``: int8, int4, int2, int1, nf4, fp8, w8a8, w4a8
torchao, gemlite, humming   plain with that project's layers of 4 bits, each by its own advice
torchao-mslk                torchao's with the kernels of MSLK, where that is installed, too
torchao-fp8                 plain with torchao's float8 layers, to compare with fp8

``int4+head`` and so on have the output layer packed, too. Lists are separated by spaces or commas. Times are
milliseconds of the host for a step among many, the median of rounds in which the ways take turns; ``x plain`` is the
ratio to plain in the same form, ``off`` the distance of a decode step's logits from plain's, as a part of their
length, which is the error of rounding the weights. Form ``max-autotune`` is torch.compile's, too. A way that fails or
is not installed says why, and costs the others nothing. With ``--time-limit`` no way is made ready that would end after
it, as far as the longest before tells. The last lines are a table of all.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from registry import Device

from .. import arguments as types
from .decoding import FORMS, UNCOMPILED, Decoding, prefill
from .peers import versions
from .table import plain_table
from .timing import Deadline, Step, add_options, milliseconds, ratio
from .ways import MODELS, is_way, model_of, settings_of, told, why_not

WAYS = ("plain", "apply", "int4", "int4+head")


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step of one way in one form, None where it failed, with the reason in ``fault``.

    ``off`` is the distance of a decode step's logits from plain's over the length of plain's, None without plain.
    """

    form: str
    batch: int
    way: str
    ms: float | None
    ratio: float | None = None
    fault: str = ""
    off: float | None = None


class Ready(NamedTuple):
    """A way's step in a form, what rewinds its cache, and a decode step's logits."""

    step: Step
    rewind: Step
    logits: torch.Tensor | None

    @classmethod
    def of(cls, form: str, batch: int, way: str, model: Any) -> Ready:
        """The step, compiled or captured."""
        if form == "prefill":
            return cls(prefill(model, batch), lambda: None, None)
        decoding = Decoding(model, batch, settings_of(way))
        return cls(decoding.in_form(form), decoding.rewind, decoding.logits)


def rows_of(form: str, batch: int, models: dict[str, Any], count: int | None, deadline: Deadline) -> list[Row]:
    """The rows of one form at one batch."""
    steps: dict[str, Ready] = {}
    failed: list[Row] = []
    kind = form if form in UNCOMPILED else "compiled"
    for way, model in models.items():
        began = time.perf_counter()
        if deadline.is_near(kind):
            failed.append(Row(form, batch, way, None, fault="left out: it would have ended after the time limit"))
            continue
        try:
            steps[way] = Ready.of(form, batch, way, model)
        except Exception as fault:  # one way's fault is its row
            failed.append(Row(form, batch, way, None, fault=told(fault)))
        deadline.took(kind, time.perf_counter() - began)
        print(f"  {form} batch {batch} {way}: ready in {time.perf_counter() - began:.1f} s", flush=True)
    try:
        times = milliseconds(
            {way: one.step for way, one in steps.items()}, {way: one.rewind for way, one in steps.items()}, count
        )
    except Exception as fault:  # rows of other forms are not lost
        return [*(Row(form, batch, way, None, fault=told(fault)) for way in steps), *failed]
    plain = times.get("plain")
    rows = [
        Row(form, batch, way, statistics.median(each), ratio(each, plain), off=_off(steps, way))
        for way, each in times.items()
    ]
    return [*rows, *failed]


def _off(steps: Mapping[str, Ready], way: str) -> float | None:
    plain, own = (steps[name].logits if name in steps else None for name in ("plain", way))
    return None if plain is None or own is None else float((own - plain).norm() / plain.norm())


def shown(row: Row) -> str:
    """A row as text."""
    found = row.fault if row.ms is None else f"{row.ms:9.3f} ms"
    ratio = "" if row.ratio is None else f"  x plain {row.ratio:5.3f}"
    off = "" if row.off is None else f"  off {row.off:.4f}"
    return f"{row.form:16} batch {row.batch:3} {row.way:11} {found}{ratio}{off}"


def built(options: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], list[Row]]:
    """The models by way, and rows for each that could not be made."""
    models: dict[str, Any] = {}
    failed: list[Row] = []
    for way in options.ways:
        try:
            models[way] = model_of(way, options.model, options.layers, device, small=options.smoke)
        except Exception as fault:  # a way that is not installed is a row that says so
            reason = why_not(way, fault)
            print(f"{way}: not measured: {reason}", flush=True)
            failed += [
                Row(form, batch, way, None, fault=reason) for batch in options.batches for form in options.forms
            ]  # fmt: skip
        gc.collect()
    return models, failed


def measure(options: argparse.Namespace, device: torch.device) -> list[Row]:
    """All rows, printed as they come; what would end after the time limit is left out."""
    deadline = Deadline(options.time_limit)
    with torch.no_grad():
        models, failed = built(options, device)
        rows: list[Row] = []
        for batch in options.batches:
            for form in options.forms:
                found = rows_of(form, batch, models, options.steps, deadline)
                print("\n".join(map(shown, found)), flush=True)
                rows += found
                torch._dynamo.reset()
                gc.collect()
    return [*rows, *failed]


def write(folder: Path, rows: Sequence[Row], options: argparse.Namespace, device: Device) -> None:
    """Write ``models.json`` and ``models.txt`` into the folder."""
    environment = {
        "device": str(device), **device.software(), "transformers": transformers.__version__, **versions(options.ways),
        "model": options.model, "layers": options.layers,
    }  # fmt: skip
    record = {"environment": environment, "rows": [asdict(row) for row in rows]}
    (folder / "models.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [f"{name:15} {value}" for name, value in environment.items()]
    (folder / "models.txt").write_text("\n".join([*lines, "", *map(shown, rows)]) + "\n")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS), default="llama")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", type=types.positive, action=types.Listed, default=[1, 16], metavar="N")
    forms = [form for form in FORMS if form != "max-autotune"]
    parser.add_argument("--forms", type=types.one_of(FORMS), action=types.Listed, default=forms, metavar="FORM")
    parser.add_argument("--ways", type=_way, action=types.Listed, default=list(WAYS), metavar="WAY")
    add_options(parser, "models", None)
    return parser.parse_args(arguments)


def _way(text: str) -> str:
    if not is_way(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no way; --help lists them")
    return text


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Measure and print."""
    options = parsed(arguments)
    device = Device.best()
    rows = measure(options, device.torch)
    if options.write:
        write(options.write, rows, options, device)
    print("\n" + plain_table([asdict(row) for row in rows]), flush=True)
    return rows


if __name__ == "__main__":
    main()
