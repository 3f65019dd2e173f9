"""A decoder layer of Llama's form, written in plain torch, with `registry.call` inside: right and fast in every form?

    python -m benchmarks.llama_block [--tokens 1 16 256] [--write benchmarks/results/h200]

The layer (hidden 4096, 32 heads, 14336 wide in the middle, as Llama-2-7B but for the width) reads ``tokens`` new tokens
after a cache of 512. Its norms, its seven linear layers of 4 bits and its attention's softmax are calls of the
registry; all else is torch. It runs eager, under ``torch.compile(fullgraph=True)`` and as a captured CUDA graph; so
does the same layer in torch alone, with the same weights in bfloat16. Both are compared with that layer in float64 on
the exact weights: the registry's error may be twice that of torch's bfloat16 and a rounding (`LIMITS`), in every form.
Times are microseconds from host to host of a call among many. A layer's weights do not fit in L2, so that each call
reads them from memory.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import registry
from registry import Device, PackedWeight
from registry.packed import dequantized

from .arguments import output_folder

EPS = 1e-5
NAMES = ("q", "k", "v", "o", "gate", "up", "down")
LIMITS = {"rms": (2.0, 1e-3), "worst": (2.0, 2e-2)}
"""Allowed error: this factor of the error of torch in bfloat16, plus this; relative to the output's rms."""


@dataclass(frozen=True)
class Size:
    """Widths of a layer. ``context`` is the number of cached tokens."""

    hidden: int = 4096
    heads: int = 32
    ffn: int = 14336
    context: int = 512
    group_size: int = 128

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


SMALL = Size(hidden=256, heads=4, ffn=512, context=24)


class Plain:
    """The operations that a layer is made of, by torch alone; weights are dense ``[N, K]``."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Llama's norm."""
        return functional.rms_norm(x, weight.shape, weight, EPS)

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last dimension."""
        return torch.softmax(x, -1)

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        """``x @ weight.T``."""
        return functional.linear(x, weight)


class Registered(Plain):
    """The operations of a layer through the registry; weights are packed to 4 bits."""

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """rms_norm."""
        y: Tensor = registry.call("rms_norm", x, weight, eps=EPS)
        return y

    def softmax(self, x: Tensor) -> Tensor:
        """softmax."""
        y: Tensor = registry.call("softmax", x)
        return y

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        """gemm_int4."""
        y: Tensor = registry.call("gemm_int4", x, weight)
        return y


class Layer(torch.nn.Module):
    """Attention and feed-forward of one layer, each after a norm and added to its input, ``[tokens, hidden]``."""

    def __init__(self, size: Size, operations: Plain, norms: Sequence[Tensor], weights: dict[str, Any], past: Tensor):
        super().__init__()
        self.size, self.operations, self.weights = size, operations, weights
        self.attention_norm, self.ffn_norm = norms
        self.past = past
        """Keys and values of the cache, ``[2, heads, context, head_dim]``."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for ``x``, both ``[tokens, hidden]``."""
        do, weights = self.operations, self.weights
        x = x + do.linear(self._attention(do.norm(x, self.attention_norm)), weights["o"])
        wide = do.norm(x, self.ffn_norm)
        gated = functional.silu(do.linear(wide, weights["gate"])) * do.linear(wide, weights["up"])
        return x + do.linear(gated, weights["down"])

    def _attention(self, x: Tensor) -> Tensor:
        do, size, tokens = self.operations, self.size, x.shape[0]
        q, k, v = (
            do.linear(x, self.weights[name]).view(tokens, size.heads, size.head_dim).transpose(0, 1)
            for name in ("q", "k", "v")
        )
        places = torch.arange(size.context, size.context + tokens, device=x.device)
        q, k = _rotated(q, places), _rotated(k, places)
        keys, values = torch.cat([self.past[0], k], dim=1), torch.cat([self.past[1], v], dim=1)
        scores = torch.matmul(q, keys.transpose(1, 2)) / math.sqrt(size.head_dim)
        later = torch.arange(size.context + tokens, device=x.device)[None, :] > places[:, None]
        weights = do.softmax(scores.masked_fill(later, -math.inf))
        return torch.matmul(weights, values).transpose(0, 1).reshape(tokens, size.hidden)


def _rotated(x: Tensor, places: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021), halves side by side as in Llama's checkpoints; angles in fp32."""
    half = x.shape[-1] // 2
    steps = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angles = places.to(torch.float32)[:, None] * torch.exp(-math.log(10000.0) * steps)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@dataclass(frozen=True)
class Layers:
    """One layer in three forms: through the registry, in torch, and in torch in float64 on the exact weights."""

    registered: Layer
    plain: Layer
    exact: Layer


def make(size: Size, device: str, seed: int = 0) -> Layers:
    """Layers with random weights of the usual magnitude, quantised and packed."""
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=generator, dtype=torch.float32)

    shapes = dict.fromkeys(NAMES, (size.hidden, size.hidden))
    shapes |= {"gate": (size.ffn, size.hidden), "up": (size.ffn, size.hidden), "down": (size.hidden, size.ffn)}
    packed = {}
    for name, (n, k) in shapes.items():
        packed[name] = registry.quantize((random(n, k) / math.sqrt(k)).bfloat16(), 4, size.group_size)
    norms = [(1 + 0.1 * random(size.hidden)).bfloat16() for _ in range(2)]
    past = random(2, size.heads, size.context, size.head_dim).bfloat16()
    wide = [norm.double() for norm in norms]
    return Layers(
        Layer(size, Registered(), norms, packed, past),
        Layer(size, Plain(), norms, {name: weight.dequantize() for name, weight in packed.items()}, past),
        Layer(size, Plain(), wide, {name: _exact(weight) for name, weight in packed.items()}, past.double()),
    )


def _exact(weight: PackedWeight) -> Tensor:
    parts = (weight.qweight, weight.scales, weight.zeros)
    return dequantized(*parts, weight.group_size, torch.float64).T.contiguous()


@dataclass(frozen=True)
class Form:
    """One way to run a layer on one number of tokens. ``run`` computes from the tensor it was made with."""

    name: str
    run: Callable[[], Tensor]


def forms(layer: Layer, x: Tensor, backend: str) -> list[Form]:
    """Every form that this device has. The graph form reads ``x`` at every replay."""
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False, backend=backend)
    found = [Form("eager", lambda: layer(x)), Form("compiled", lambda: compiled(x))]
    return [*found, Form("graph", _captured(layer, x))] if x.is_cuda else found


def _captured(layer: Layer, x: Tensor) -> Callable[[], Tensor]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # nothing is found, compiled or prepared while capturing
        for _ in range(2):
            layer(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y: Tensor = layer(x)

    def replay() -> Tensor:
        graph.replay()
        return y

    return replay


def errors(y: Tensor, exact: Tensor) -> dict[str, float]:
    """Root mean square and largest error, relative to the exact output's root mean square."""
    off, size = y.double() - exact, exact.square().mean().sqrt()
    return {"rms": (off.square().mean().sqrt() / size).item(), "worst": (off.abs().max() / size).item()}


@dataclass(frozen=True)
class Line:
    """A form on some tokens. ``plain_us``: the same form of the layer in torch alone."""

    tokens: int
    form: str
    us: float
    plain_us: float
    error: dict[str, float]
    plain_error: dict[str, float]
    faults: tuple[str, ...]


def measure(layers: Layers, tokens: int, backend: str, calls: int) -> list[Line]:
    """A line a form; new data arrives in the input after all forms were made."""
    where = layers.plain.past
    generator = torch.Generator(where.device).manual_seed(tokens)
    shape = (tokens, layers.plain.size.hidden)
    x = torch.zeros(shape, device=where.device, dtype=where.dtype)
    registered, plain = (forms(layer, x, backend) for layer in (layers.registered, layers.plain))
    x.copy_(torch.randn(shape, device=where.device, generator=generator))
    exact = layers.exact(x.double())
    baseline = errors(plain[0].run(), exact)
    lines = []
    for one, other in zip(registered, plain, strict=True):
        found = errors(one.run(), exact)
        faults = tuple(
            f"{name} error {found[name]:.3g}, allowed {factor * baseline[name] + more:.3g}"
            for name, (factor, more) in LIMITS.items()
            if not found[name] <= factor * baseline[name] + more
        )
        us, plain_us = _times((one.run, other.run), calls)
        lines.append(Line(tokens, one.name, us, plain_us, found, baseline, faults))
    return lines


def _times(runs: Sequence[Callable[[], Any]], calls: int) -> list[float]:
    """µs a call, median of seven batches in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for each in range(8):
        for run, times in zip(runs, taken, strict=True):
            _wait()
            began = time.perf_counter()
            for _ in range(calls):
                run()
            _wait()
            if each:
                times.append((time.perf_counter() - began) / calls * 1e6)
    return [statistics.median(times) for times in taken]


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def choices(layer: Layer, tokens: int) -> list[str]:
    """The choice of the registry for each call of the layer, by ``explain``."""
    size, past = layer.size, layer.past
    x = past.new_zeros(tokens, size.hidden)
    told = [registry.explain("rms_norm", x, layer.attention_norm, eps=EPS)]
    told.append(registry.explain("softmax", past.new_zeros(size.heads, tokens, size.context + tokens)))
    for name in ("q", "gate", "down"):
        k = layer.weights[name].shape[1]
        told.append(registry.explain("gemm_int4", past.new_zeros(tokens, k), layer.weights[name]))
    return [f"{each.problem}: {each.step} {each.implementation} {dict(each.config)}" for each in told]


def report(lines: Sequence[Line]) -> str:
    """A markdown table."""
    rows = ["| tokens | form | registry µs | torch bf16 µs | torch over registry | rms error | torch's |"]
    rows.append("|" + " --- |" * 7)
    rows += [
        f"| {line.tokens} | {line.form} | {line.us:.1f} | {line.plain_us:.1f} | {line.plain_us / line.us:.2f} | "
        f"{line.error['rms']:.2e}{' WRONG' if line.faults else ''} | {line.plain_error['rms']:.2e} |"
        for line in lines
    ]
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code is 1 when an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--small", action="store_true", help="a layer of seconds, for a CPU")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--calls", type=int, help="calls a batch")
    parser.add_argument("--db", help="the tuning database; default: as for `tune`")
    parser.add_argument("--write", type=output_folder, help="folder for llama_block.json and llama_block.md")
    options = parser.parse_args(arguments)
    if options.db:
        registry.configure(database=options.db)
    size = SMALL if options.small else Size()
    lines: list[Line] = []
    chosen: list[str] = []
    with torch.no_grad():
        layers = make(size, options.device)
        for tokens in options.tokens:
            lines += measure(layers, tokens, options.backend, options.calls or (3 if options.small else 50))
            chosen += choices(layers.registered, tokens)
    device = Device.of(options.device)
    software = dict(device.software())
    shown = ", ".join(f"{name} {version}" for name, version in software.items())
    text = f"{report(lines)}\n\n{size}\n\n{device.name}; {shown}"
    print(text, "", *chosen, sep="\n")
    for line in lines:
        for fault in line.faults:
            print(f"{line.tokens} tokens, {line.form}: {fault}", file=sys.stderr)
    if options.write:
        record = {"device": device.name, "software": software, "size": asdict(size), "chosen": chosen}
        (options.write / "llama_block.md").write_text(text + "\n")
        (options.write / "llama_block.json").write_text(
            json.dumps(record | {"lines": [asdict(line) for line in lines]}, indent=1) + "\n"
        )
    return int(any(line.faults for line in lines))


if __name__ == "__main__":
    sys.exit(main())
