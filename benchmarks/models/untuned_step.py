"""A decode step over a long StaticCache on a machine that was never tuned: plain, and applied with and without rules.

    python -m benchmarks.models.untuned_step [--keys 4096] [--dtype bfloat16] [--layers 8] [--threads 2]

A small Llama (hidden 512, 8 heads, 2 of keys, 64 wide) reads one token after ``keys`` - 512 of one sequence. The
database is empty. Ways: ``plain`` is transformers' own model; ``rules`` is it by ``apply``, with the defaults that
come with the package; ``declared`` is that without them; ``torch`` is ``rules`` with torch's attention_decode. The
ways take turns, round by round; the table has medians over rounds, in milliseconds of the host.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import registry
from registry.integrations.transformers import apply
from registry.shipped import VARIABLE

from ..arguments import positive
from .decoding import FILLED, Decoding
from .timing import Step, milliseconds

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
}
WAYS = ("plain", "rules", "declared", "torch")


def model_of(layers: int, dtype: torch.dtype, keys: int) -> Any:
    """The model, with equal weights at each call."""
    config = transformers.LlamaConfig(**SIZES, num_hidden_layers=layers, max_position_embeddings=keys)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def measure(layers: int, dtype: torch.dtype, keys: int, steps: int, database: Path) -> dict[str, list[float]]:
    """Milliseconds of a step by way, a value a round; ``database`` is that of a machine that was never tuned."""

    def dispatch_by(way: str) -> None:
        os.environ[VARIABLE] = "0" if way == "declared" else "1"
        registry.configure(database=database)

    def decoding_of(way: str) -> Decoding:
        dispatch_by(way)
        model = model_of(layers, dtype, keys)
        if way != "plain":
            apply(model)
        return Decoding(model, 1, context=keys, filled=keys - FILLED)

    def ready(way: str) -> Callable[[], None]:
        def run() -> None:
            dispatch_by(way)
            decodings[way].rewind()
            for _ in range(3):
                forms[way]()

        return run

    with torch.no_grad():
        decodings = {way: decoding_of(way) for way in WAYS}
        forms = {way: one.step(one.model) for way, one in decodings.items()}
        forms["torch"] = _by_torch(forms["torch"])
        return milliseconds(forms, {way: ready(way) for way in WAYS}, steps)


def _by_torch(step: Step) -> Step:
    def forced() -> Any:
        with registry.using(attention_decode="torch.native"):
            return step()

    return forced


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Print the table; returns the medians by way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=positive, default=4096, help="tokens that the cache has room for, over 512")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--layers", type=positive, default=8)
    parser.add_argument("--threads", type=positive, help="of torch, by default as many as it takes")
    parser.add_argument("--steps", type=positive, default=20, help="steps in a round")
    options = parser.parse_args(arguments)
    if options.keys <= FILLED:
        parser.error(f"--keys {options.keys}: expected more than {FILLED}")
    if options.threads:
        torch.set_num_threads(options.threads)
    before = os.environ.get(VARIABLE, "")
    try:
        with tempfile.TemporaryDirectory() as folder:
            dtype = getattr(torch, options.dtype)
            times = measure(options.layers, dtype, options.keys, options.steps, Path(folder) / "empty.db")
    finally:
        os.environ[VARIABLE] = before
        registry.configure(database=None)
    medians = {way: statistics.median(rounds) for way, rounds in times.items()}
    print(f"\n{options.dtype}, {options.keys} keys, {options.layers} layers, {torch.get_num_threads()} threads\n")
    print("| way | milliseconds a step | least round | over plain, median of rounds |\n| --- | --- | --- | --- |")
    for way, rounds in times.items():
        over = statistics.median(one / plain for one, plain in zip(rounds, times["plain"], strict=True))
        print(f"| {way} | {medians[way]:.2f} | {min(rounds):.2f} | {over:.2f} |")
    return medians


if __name__ == "__main__":
    sys.exit(not main())
