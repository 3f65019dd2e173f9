"""configs/llm.yaml has every linear layer of the models in the table at its head, as ``tune --model`` derives them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from registry.discovery.catalog import Catalog
from registry.problem import Problem, Value
from registry.tuner.models.derive import derive, described
from registry.tuner.models.workload import Workload
from registry.tuner.shapes.shapes import read_shapes

LLM = Path(__file__).parents[3] / "configs" / "llm.yaml"
TOKENS = (1, 16, 32, 48, 64, 96, 128, 256, 512, 1024, 4096, 8192)
REACH = 2.0
"""Octaves over which the winner of another number of tokens is good enough, for ops that are not in ``AT_EVERY``."""

Layer = Mapping[str, Value]
"""The dimensions of a layer's problems, all but the number of tokens or rows."""

DERIVED: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "gemm_int4": {"quantize": "int4", "lm_head": True},
    "gemm_int8": {"quantize": "int8"},
    "gemm_w4a8": {"quantize": "w4a8"},
    "scaled_mm": {"quantize": "fp8"},
    "fused_moe": {},
    "grouped_gemm": {"training": True},
    "grouped_gemm_int4": {"quantize": "int4"},
    "grouped_scaled_mm": {"quantize": "fp8"},
}
"""Op -> the options of the workload that calls it."""
AT_EVERY = frozenset({"linear", "gemm_int4", "fused_moe", "grouped_gemm", "grouped_gemm_int4"})
"""Ops with entries at each of ``TOKENS``."""


def models() -> list[str]:
    """The first column of the table at the head of the file."""
    table = LLM.read_text().partition("#   model ")[2].partition("\n#\n")[0]
    return re.findall(r"^#   (\S+)", table, re.MULTILINE)


@cache
def box() -> Catalog:
    return Catalog()


@cache
def listed(op: str) -> tuple[tuple[int, Layer], ...]:
    """The entries of an op in the file: tokens or rows with the layer."""
    return tuple(map(split, file_problems()[op]))


@cache
def file_problems() -> Mapping[str, list[Problem]]:
    return read_shapes(LLM, box()).problems


@cache
def layers(model: str, op: str) -> tuple[tuple[Layer, int], ...]:
    """The layers of a model that call an op, each with its rows for one token."""
    workload = Workload(batch=(1,), context=(1,), **DERIVED[op])
    problems = derive(described(model), workload, box()).shapes.problems.get(op, ())
    return tuple((layer, rows) for rows, layer in map(split, problems))


def split(problem: Problem) -> tuple[int, Layer]:
    """The number of tokens or rows of a problem, and its other dimensions."""
    name = "tokens" if "tokens" in problem.dims else "m"
    return int(problem.dims[name]), {key: value for key, value in problem.dims.items() if key != name}


def spread(own: Layer, whole: Layer) -> int | None:
    """How many devices share the experts of ``whole`` where one has ``own``; None where it is another layer.

    A device has some of the experts whole, or of every expert a part of its width. Scales of any kind are taken for
    rows': checkpoints of DeepSeek have blocks.
    """
    differing = {name for name in whole if own[name] != whole[name]} - {"scales"}
    if not differing:
        return 1
    if differing in ({"experts"}, {"intermediate"}):
        (name,) = differing
        devices, rest = divmod(int(whole[name]), int(own[name]))
        return devices if not rest else None
    return None


def tokens_of(op: str, layer: Layer, rows: int) -> set[float]:
    """The numbers of tokens at which the file has a layer. ``rows``: those that one token brings to all devices."""
    found: set[float] = set()
    for count, own in listed(op):
        if (devices := spread(own, layer)) is not None:
            found.add(count / rows * (devices if "experts" in layer and op != "fused_moe" else 1))
    return found


def missing(found: Iterable[float], octaves: float) -> list[int]:
    """Those of ``TOKENS`` that are farther than ``octaves`` from each number that was found."""
    numbers = [*found]
    return [one for one in TOKENS if all(abs(math.log2(one / number)) > octaves for number in numbers)]


def shown(op: str, layer: Layer) -> str:
    names = ("n", "k", "hidden", "intermediate", "experts")
    return f"{op} {' '.join(f'{name}={layer[name]}' for name in names if name in layer)}"


def lacking(model: str, op: str) -> list[str]:
    """The layers of a model that the file lacks for an op, with the numbers of tokens."""
    octaves = 0.0 if op in AT_EVERY else REACH
    told = ((layer, missing(tokens_of(op, layer, rows), octaves)) for layer, rows in layers(model, op))
    return [f"{model}: {shown(op, layer)} at {absent} tokens" for layer, absent in told if absent]


def test_the_table_at_the_head_is_read() -> None:
    assert {
        "Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B", "Mixtral-8x7B-v0.1", "DeepSeek-V3",
        "Mistral-7B-v0.1", "Llama-2-7B",
    } <= set(models())  # fmt: skip
    assert {32, 48, 96, 128, 512, 1024} < {*TOKENS}
    assert (min(TOKENS), max(TOKENS)) == (1, 8192)


@pytest.mark.parametrize("op", DERIVED)
@pytest.mark.parametrize("model", models())
def test_every_linear_layer_of_a_model_is_there(model: str, op: str) -> None:
    assert not (told := lacking(model, op)), "add to configs/llm.yaml:\n" + "\n".join(told)


@pytest.mark.parametrize("model", models())
def test_every_layer_that_may_be_pruned_is_there(model: str) -> None:
    """No option of ``tune --model`` derives gemm_sparse24; it takes the layers that gemm_int8 takes."""
    weights = {(layer["n"], layer["k"]) for layer, _ in layers(model, "gemm_int8")}
    told = [
        f"{model}: gemm_sparse24 n={n} k={k} at {absent} tokens"
        for n, k in sorted(weights)
        if (absent := missing([m for m, one in listed("gemm_sparse24") if (one["n"], one["k"]) == (n, k)], REACH))
    ]
    assert not told, "add to configs/llm.yaml:\n" + "\n".join(told)


def test_every_kind_of_layer_is_asked_for() -> None:
    """The layers that the test of a model goes through, by hand."""
    llama = {(layer["n"], layer["k"]) for layer, _ in layers("Llama-3.1-8B", "linear")}
    assert llama == {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)}
    assert {(layer["n"], layer["k"]) for layer, _ in layers("Llama-3.1-8B", "gemm_int4")} == llama
    # the router stays dense
    assert (8, 4096) in {(layer["n"], layer["k"]) for layer, _ in layers("Mixtral-8x7B-v0.1", "linear")}
    assert (8, 4096) not in {(layer["n"], layer["k"]) for layer, _ in layers("Mixtral-8x7B-v0.1", "gemm_int4")}
    experts = {
        (layer["n"], layer["k"], layer["experts"], rows) for layer, rows in layers("DeepSeek-V3", "grouped_gemm")
    }
    assert experts == {(4096, 7168, 256, 8), (7168, 2048, 256, 8)}
    assert [(layer["intermediate"], rows) for layer, rows in layers("Qwen3-30B-A3B", "fused_moe")] == [(768, 1)]


def test_a_layer_that_the_file_lacks_is_told() -> None:
    # phi-4 is in the box, but not in the table
    assert f"phi-4: linear n=7680 k=5120 at {[*TOKENS]} tokens" in lacking("phi-4", "linear")
    assert missing([1, 16, 256, 4096], REACH) == []
    assert missing([1, 256, 1024], REACH) == [16, 32, 48, 8192]
    assert missing([1, 16, 32, 48, 64, 128], 0.0) == [96, 256, 512, 1024, 4096, 8192]
