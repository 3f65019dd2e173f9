"""A decoder of transformers with and without ``apply``: decode steps and prompts in every form a user runs.

    python -m benchmarks.models [--layers 32] [--batches 1 16] [--forms eager graph compile reduce-overhead prefill]
                                [--ways plain apply int4] [--time-limit SECONDS]
                                [--write benchmarks/results/h200/models]

The model has Llama-3.1-8B's widths and random weights in bfloat16. A decode step is one token for each sequence over a
StaticCache of 1024, of which 512 are filled; a prompt is 512 tokens into an empty one. ``plain`` is transformers with
torch's attention, ``apply`` what ``registry.integrations.transformers.apply`` makes of it, ``int4`` and others the same
with ``quantize``, ``int4+head`` with the output layer packed, too. Times are milliseconds of the host for a step among
many, the median of rounds in which the ways take turns; ``x plain`` is the ratio to plain in the same form. A form that
fails says why, and costs the others nothing.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from registry import Device
from registry.integrations.transformers import apply

from .timing import Step, add_options, milliseconds, ratio

FORMS = ("eager", "graph", "compile", "reduce-overhead", "prefill")
WAYS = ("plain", "apply", "int4", "int4+head")
CONTEXT, FILLED = 1024, 512
STEPS = 20

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
}
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step of one way in one form, None where it failed, with the reason in ``fault``."""

    form: str
    batch: int
    way: str
    ms: float | None
    ratio: float | None = None
    fault: str = ""


def model_of(way: str, sizes: dict[str, Any], layers: int, device: torch.device) -> Any:
    """The model of a way; equal weights for all."""
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers)
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    if way != "plain":
        name, _, head = way.partition("+")
        report = apply(model, quantize=None if name == "apply" else name, lm_head=head == "head")  # type: ignore[arg-type]
        print(f"{way}:\n{report}", flush=True)
    return model


def cache_name(model: Any) -> str:
    """The name of the argument that is the cache; it differs from version to version."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class Decoding:
    """One model's decode steps: each call is the token after the first ``FILLED`` ones."""

    def __init__(self, model: Any, batch: int) -> None:
        self.model = model
        device = model.lm_head.weight.device if hasattr(model.lm_head, "weight") else model.device
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=CONTEXT)
        tokens = torch.randint(3, model.config.vocab_size, (batch, FILLED), device=device)
        self.token = tokens[:, :1].clone()
        with torch.no_grad():
            model(tokens, **{cache_name(model): self.cache}, logits_to_keep=1)

    def rewind(self) -> None:
        """Forget the tokens after the first ``FILLED``, whose slots are written again."""
        for layer in self.cache.layers:
            length = getattr(layer, "cumulative_length", None)
            if isinstance(length, torch.Tensor):
                length.fill_(FILLED)
            elif length is not None:
                layer.cumulative_length = FILLED
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = FILLED

    def step(self, forward: Callable[..., Any]) -> Step:
        """A step by ``forward``."""
        token, given = self.token, {cache_name(self.model): self.cache}
        return lambda: forward(token, **given).logits

    def in_form(self, form: str) -> Step:
        """The step in a form; compiled, captured and run some times."""
        if form == "eager":
            step = self.step(self.model)
        elif form == "graph":
            step = self._captured(self.step(self.model))
        else:
            mode = None if form == "compile" else form
            step = self.step(torch.compile(self.model, mode=mode, fullgraph=True, dynamic=False))
        for _ in range(4):
            self.rewind()
            step()
        return step

    def _captured(self, step: Step) -> Step:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        self.rewind()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay


def prefill(model: Any, batch: int) -> Step:
    """A prompt of ``FILLED`` tokens into an empty cache, with the last token's logits."""
    tokens = torch.randint(3, model.config.vocab_size, (batch, FILLED), device=model.device)

    def step() -> Any:
        given = {cache_name(model): transformers.DynamicCache(config=model.config)}
        return model(tokens, **given, logits_to_keep=1).logits

    for _ in range(2):
        step()
    return step


def rows_of(form: str, batch: int, models: dict[str, Any], count: int) -> list[Row]:
    """The rows of one form at one batch."""
    steps: dict[str, Step] = {}
    rewinds: dict[str, Step] = {}
    failed: list[Row] = []
    for way, model in models.items():
        began = time.perf_counter()
        try:
            if form == "prefill":
                steps[way], rewinds[way] = prefill(model, batch), lambda: None
            else:
                decoding = Decoding(model, batch)
                steps[way], rewinds[way] = decoding.in_form(form), decoding.rewind
        except Exception as fault:  # one way's fault is its row
            failed.append(Row(form, batch, way, None, fault=f"{type(fault).__name__}: {fault}"[:300]))
            steps.pop(way, None)
        print(f"  {form} batch {batch} {way}: ready in {time.perf_counter() - began:.1f} s", flush=True)
    times = milliseconds(steps, rewinds, count)
    median = {way: statistics.median(each) for way, each in times.items()}
    plain = times.get("plain")
    ratios = {way: ratio(each, plain) for way, each in times.items()}
    return [*(Row(form, batch, way, median[way], ratios[way]) for way in times), *failed]


def shown(row: Row) -> str:
    """A row as text."""
    told = row.fault if row.ms is None else f"{row.ms:9.3f} ms"
    ratio = "" if row.ratio is None else f"  x plain {row.ratio:5.3f}"
    return f"{row.form:16} batch {row.batch:3} {row.way:8} {told}{ratio}"


def measure(options: argparse.Namespace, device: torch.device) -> list[Row]:
    """All rows, printed as they come; forms that begin after the time limit are left out."""
    began, sizes = time.perf_counter(), SMALL if options.smoke else LLAMA
    with torch.no_grad():
        models = {way: model_of(way, sizes, options.layers, device) for way in options.ways}
        rows: list[Row] = []
        for batch in options.batches:
            for form in options.forms:
                if options.time_limit and time.perf_counter() - began > options.time_limit:
                    print(f"left out: {form} batch {batch}", flush=True)
                    continue
                found = rows_of(form, batch, models, options.steps)
                print("\n".join(map(shown, found)), flush=True)
                rows += found
                torch._dynamo.reset()
                gc.collect()
    return rows


def write(folder: Path, rows: Sequence[Row], options: argparse.Namespace, device: Device) -> None:
    """Write ``models.json`` and ``models.txt`` into the folder."""
    environment = {
        "device": str(device), **device.software(), "transformers": transformers.__version__, "layers": options.layers
    }  # fmt: skip
    record = {"environment": environment, "rows": [asdict(row) for row in rows]}
    (folder / "models.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = [f"{name:12} {value}" for name, value in environment.items()]
    (folder / "models.txt").write_text("\n".join([*lines, "", *map(shown, rows)]) + "\n")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    add_options(parser, "models", STEPS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Measure and print."""
    options = parsed(arguments)
    device = Device.best()
    rows = measure(options, device.torch)
    if options.write:
        write(options.write, rows, options, device)
    return rows


if __name__ == "__main__":
    main()
