"""A decoder of transformers with and without ``apply``, and with other projects' layers: decode steps and prompts.

    python -m benchmarks.models [--model llama] [--layers 32] [--batches 1 16] [--time-limit SECONDS]
                                [--context 1024] [--filled 512]
                                [--forms eager graph compile reduce-overhead prefill]
                                [--ways plain apply int4 fp8 torchao gemlite humming torchao-fp8]
                                [--processes] [--write benchmarks/results/h200/models]

The model has Llama-3.1-8B's widths, Mixtral-8x7B's, or (``deepseek``) those of DeepSeek-V3's attention with a small
dense MLP, and random weights in bfloat16. A decode step is one token for each sequence over a StaticCache of 1024, of
which 512 are filled; a prompt is 512 tokens into an empty one. Ways:

plain     transformers with torch's attention
apply     what ``registry.integrations.transformers.apply`` makes of it
int4 ...  the same with ``quantize``: int8, int4, int2, int1, nf4, fp8, w8a8, w4a8
torchao, gemlite, humming   plain with that project's layers of 4 bits, each by its own advice
torchao-mslk                torchao's with the kernels of MSLK, where that is installed, too
torchao-fp8                 plain with torchao's float8 layers, to compare with fp8

``int4+head`` and so on have the output layer packed, too. Lists are separated by spaces or commas. Times are
milliseconds of the host for a step among many, the median of rounds in which the ways take turns; ``x plain`` is the
ratio to plain in the same form, ``off`` the distance of a decode step's logits from plain's, as a part of their length,
which is the error of rounding the weights. Form ``max-autotune`` is torch.compile's, too. A way that fails or is not
installed says why, and costs the others nothing. With ``--processes`` each way has a process of its own, in which it is
made ready beside the others; they still take turns when they are timed. With ``--time-limit`` no way is made ready that
would end after it, as far as the longest before tells. The last lines are a table of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers

from registry import Device

from .. import arguments as types
from .decoding import CONTEXT, FILLED, FORMS, UNCOMPILED
from .entrants import Entrant, EntrantError, ModelSizes, answers, entrants
from .peers import versions
from .table import plain_table
from .timing import Deadline, Round, add_options, in_turns, ratio
from .ways import MODELS, is_way

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


def rows_of(form: str, batch: int, ways: Sequence[Entrant], options: argparse.Namespace, limit: Deadline) -> list[Row]:
    """The rows of one form at one batch."""
    steps: dict[str, Entrant] = {}
    logits: dict[str, npt.NDArray[np.float32] | None] = {}
    failed: list[Row] = []
    kind = form if form in UNCOMPILED else "compiled"
    for group in [ways] if options.processes else [[one] for one in ways]:
        if limit.is_near(kind):
            told = "left out: it would have ended after the time limit"
            failed += [Row(form, batch, one.way, None, fault=told) for one in group]
            continue
        began = time.perf_counter()
        for one, found in answers(group, "ready", form, batch):
            if isinstance(found, EntrantError):
                failed.append(Row(form, batch, one.way, None, fault=str(found)))
            else:
                steps[one.way], logits[one.way] = one, found.logits
                print(f"  {form} batch {batch} {one.way}: ready in {found.seconds:.1f} s", flush=True)
        limit.took(kind, time.perf_counter() - began)
    try:
        times = in_turns({way: _round_of(one) for way, one in steps.items()}, options.steps)
    except EntrantError as fault:  # rows of other forms are not lost
        return [*(Row(form, batch, way, None, fault=str(fault)) for way in steps), *failed]
    plain = times.get("plain")
    rows = [
        Row(form, batch, way, statistics.median(each), ratio(each, plain), off=_off(logits.get("plain"), logits[way]))
        for way, each in times.items()
    ]
    return [*rows, *failed]


def _round_of(one: Entrant) -> Round:
    def run(count: int) -> float:
        one.ask("round", count)
        taken: float = one.answer()
        return taken

    return run


def _off(plain: npt.NDArray[np.float32] | None, own: npt.NDArray[np.float32] | None) -> float | None:
    return None if plain is None or own is None else float(np.linalg.norm(own - plain) / np.linalg.norm(plain))


def shown(row: Row) -> str:
    """A row as text."""
    found = row.fault if row.ms is None else f"{row.ms:9.3f} ms"
    ratio = "" if row.ratio is None else f"  x plain {row.ratio:5.3f}"
    off = "" if row.off is None else f"  off {row.off:.4f}"
    return f"{row.form:16} batch {row.batch:3} {row.way:11} {found}{ratio}{off}"


def built(ways: Sequence[Entrant], options: argparse.Namespace) -> tuple[list[Entrant], list[Row]]:
    """The ways whose models could be made, and rows for each other."""
    able: list[Entrant] = []
    failed: list[Row] = []
    for one, found in answers(ways, "build"):
        if not isinstance(found, EntrantError):
            able.append(one)
            continue
        print(f"{one.way}: not measured: {found}", flush=True)
        failed += [
            Row(form, batch, one.way, None, fault=str(found)) for batch in options.batches for form in options.forms
        ]
    return able, failed


def measure(options: argparse.Namespace, device: torch.device) -> list[Row]:
    """All rows, printed as they come; what would end after the time limit is left out."""
    limit = Deadline(options.time_limit)
    sizes = ModelSizes(options.model, options.layers, device, options.smoke, options.context, options.filled)
    rows: list[Row] = []
    with entrants(options.ways, sizes, processes=options.processes) as ways:
        able, failed = built(ways, options)
        for batch in options.batches:
            for form in options.forms:
                found = rows_of(form, batch, able, options, limit)
                print("\n".join(map(shown, found)), flush=True)
                rows += found
                for _ in answers(able, "drop"):
                    pass
    return [*rows, *failed]


def write(folder: Path, rows: Sequence[Row], options: argparse.Namespace, device: Device) -> None:
    """Write ``models.json`` and ``models.txt`` into the folder."""
    environment = {
        "device": str(device), **device.software(), "transformers": transformers.__version__, **versions(options.ways),
        "model": options.model, "layers": options.layers, "context": options.context, "filled": options.filled,
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
    parser.add_argument("--context", type=types.positive, default=CONTEXT, help="tokens that caches have room for")
    parser.add_argument("--filled", type=types.positive, default=FILLED, help="tokens that are in the caches")
    forms = [form for form in FORMS if form != "max-autotune"]
    parser.add_argument("--forms", type=types.one_of(FORMS), action=types.Listed, default=forms, metavar="FORM")
    parser.add_argument("--ways", type=_way, action=types.Listed, default=list(WAYS), metavar="WAY")
    parser.add_argument("--processes", action="store_true", help="a process for each way, made ready side by side")
    add_options(parser, "models", None)
    options = parser.parse_args(arguments)
    if options.filled >= options.context:
        parser.error(f"--filled {options.filled} leaves no room for a token in --context {options.context}")
    return options


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
