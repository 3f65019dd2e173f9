"""registry_flashinfer without a GPU: its hooks, the reasons why it cannot run, and what it makes of the library."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import pytest

import registry_flashinfer
from registry.backends import library_function
from registry.contracts import BOX
from registry.device import Device
from registry.implementation import Implementation
from registry.problem import Problem, Value
from registry.testing import check_implementation
from registry_flashinfer import adapting, append, decode, gated, mla, norms, prefill, rotary

from ..tiers import one_of_each
from . import flashinfer_stand_in

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
V100 = Device("cuda", 0, "NVIDIA V100", "sm_70", 80, 32 << 30, 6 << 20)
MI300 = Device("cuda", 0, "AMD Instinct MI300X", "gfx942", 304, 192 << 30, 4 << 20)
OPS = {op.name: op for op in BOX}
NAMES = {
    "rms_norm": ["rms_norm"],
    "fused_add_rms_norm": ["fused_add_rms_norm"],
    "layer_norm": ["layer_norm"],
    "silu_and_mul": ["silu_and_mul"],
    "gelu_and_mul": ["gelu_and_mul"],
    "rotary_embedding": ["rotary_embedding"],
    "kv_cache_append": ["kv_cache_append"],
    "attention": ["single", "batch"],
    "attention_decode": ["cuda_cores", "tensor_cores"],
    "mla_decode": ["mla_decode"],
}
ROWS: Mapping[str, Value] = {"rows": 5, "cols": 48}
HEADS: Mapping[str, Value] = {"heads": 6, "kv_heads": 2, "head_dim": 64}
PROMPT: Mapping[str, Value] = {
    "batch": 1, "q_len": 5, "kv_len": 9, "causal": True, "mask": "none", "softcap": False, "span": False, **HEADS,
}  # fmt: skip
CACHE: Mapping[str, Value] = {
    "batch": 3, "q_len": 1, "kv_len": 24, "page": 8, "span": False, "softcap": False, "lengths": "uniform",
    "kv_dtype": "auto", **HEADS,
}  # fmt: skip
LATENT: Mapping[str, Value] = {
    "batch": 3, "heads": 4, "kv_len": 24, "kv_lora_rank": 512, "rope_dim": 64, "page": 8, "lengths": "uniform",
}  # fmt: skip
TOKENS: Mapping[str, Value] = {"tokens": 7, "kv_heads": 2, "head_dim": 64}
DIMS: Mapping[str, Mapping[str, Value]] = {
    "rms_norm": ROWS,
    "fused_add_rms_norm": {**ROWS, "weight": True},
    "layer_norm": {**ROWS, "weight": True, "bias": True},
    "silu_and_mul": ROWS,
    "gelu_and_mul": {**ROWS, "approximate": "tanh"},
    "rotary_embedding": {**TOKENS, "heads": 4, "rotary_dim": 32, "style": "neox"},
    "kv_cache_append": {**TOKENS, "block_size": 4, "kv_dtype": "auto"},
    "attention": PROMPT,
    "attention_decode": CACHE,
    "mla_decode": LATENT,
}


def implementations(op: str) -> list[Implementation]:
    found: list[Implementation] = getattr(registry_flashinfer, f"{op}_implementations")()
    return found


def problem_of(op: str, **dims: Value) -> Problem:
    return OPS[op].problem_of({"dtype": "bfloat16", **DIMS[op], **dims})


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "_has_kernels", lambda: True)


@pytest.fixture
def _library(monkeypatch: pytest.MonkeyPatch, _kernels: None) -> Iterator[None]:
    for module in (append, decode, gated, mla, norms, prefill, rotary):
        monkeypatch.setattr(module, "library", lambda: flashinfer_stand_in)
    for module in (adapting, library_function):
        monkeypatch.setattr(module, "installed_version", lambda _: "0.7.2")
    yield
    for cached in (prefill._planned, decode._wrapper, mla._wrapper, adapting.workspace):
        cached.cache_clear()


def test_hooks_bring_the_implementations_of_each_op() -> None:
    found = {op: [one.name for one in implementations(op)] for op in NAMES}
    assert found == {op: [f"flashinfer.{name}" for name in names] for op, names in NAMES.items()}


@pytest.mark.usefixtures("_kernels")
def test_what_it_runs_has_no_reason() -> None:
    assert not list(adapting.compiled_reasons(problem_of("silu_and_mul"), H200))
    assert not list(norms.weighted_reasons(problem_of("fused_add_rms_norm"), H200))
    assert not list(append.append_reasons(problem_of("kv_cache_append"), H200))
    assert not list(prefill.single_reasons(problem_of("attention"), H200))
    assert not list(decode.decode_reasons(False, problem_of("attention_decode"), H200))


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("reasons", "problem", "device", "part"),
    [
        (adapting.general_reasons, problem_of("rms_norm"), V100, "it needs compute capability 7.5, this is sm_70"),
        (adapting.general_reasons, problem_of("rms_norm"), MI300, "it is written for NVIDIA's GPUs, this is gfx942"),
        (adapting.general_reasons, problem_of("rms_norm", dtype="float32"), H200, "expected bfloat16 or float16"),
        (norms.weighted_reasons, problem_of("fused_add_rms_norm", weight=False), H200, "it needs a weight"),
        (append.append_reasons, problem_of("kv_cache_append", head_dim=80), H200, "head_dim is 80, expected 64, 128"),
        (append.append_reasons, problem_of("kv_cache_append", kv_dtype="float8_e4m3fn"), H200, "not float8_e4m3fn"),
        (prefill.prefill_reasons, problem_of("attention", mask="bool"), H200, "it is given no bool mask"),
        (prefill.prefill_reasons, problem_of("attention", causal=False, span=4), H200, "has no end after a query's"),
        (prefill.single_reasons, problem_of("attention", batch=2), H200, "batch is 2, expected 1"),
        (prefill.batch_reasons, problem_of("attention"), H200, "flashinfer.single serves"),
        (mla.mla_reasons, problem_of("mla_decode", rope_dim=32), H200, "expected 512 and 64"),
    ],
)
def test_every_reason_is_given(reasons: Any, problem: Problem, device: Device, part: str) -> None:
    assert [part in one for one in reasons(problem, device)] == [True]


@pytest.mark.usefixtures("_kernels")
def test_several_tokens_need_tensor_cores() -> None:
    problem = problem_of("attention_decode", q_len=2)
    assert list(decode.decode_reasons(True, problem, H200)) == []
    assert [one[:10] for one in decode.decode_reasons(False, problem, H200)] == ["q_len is 2"]


def test_without_a_compiler_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapting, "_has_kernels", lambda: False)
    assert ["nvcc" in one for one in adapting.compiled_reasons(problem_of("silu_and_mul"), H200)] == [True]


@pytest.mark.skipif(find_spec("flashinfer") is not None, reason="FlashInfer is installed")
@pytest.mark.parametrize("op", NAMES)
def test_without_the_library_it_is_named(op: str) -> None:
    for one in implementations(op):
        missing = "flashinfer-python is not installed (pip install flashinfer-python)"
        assert list(one.unsupported(problem_of(op), H200)) == [missing]


CASES = [
    ("rms_norm", 0, {}),
    ("fused_add_rms_norm", 0, {}),
    ("layer_norm", 0, {}),
    ("silu_and_mul", 0, {}),
    ("gelu_and_mul", 0, {}),
    ("gelu_and_mul", 0, {"approximate": "none"}),
    ("rotary_embedding", 0, {}),
    ("rotary_embedding", 0, {"style": "gptj"}),
    ("kv_cache_append", 0, {}),
    ("kv_cache_append", 0, {"tokens": 1}),
    ("attention", 0, {}),
    ("attention", 0, {"span": 3, "softcap": True}),
    ("attention", 1, {"batch": 3, "q_len": 9}),
    ("attention", 1, {"batch": 2, "causal": False}),
    ("attention_decode", 0, {}),
    ("attention_decode", 0, {"page": False, "kv_dtype": "float8_e4m3fn"}),
    ("attention_decode", 1, {"q_len": 2, "span": 5, "softcap": True, "dtype": "float16"}),
    ("mla_decode", 0, {}),
    ("mla_decode", 0, {"page": False}),
]


@pytest.mark.parametrize(("op", "place", "dims"), one_of_each(CASES, lambda op, place, dims: op))
@pytest.mark.usefixtures("_library", "one_thread")
@pytest.mark.few(3)
def test_what_is_made_of_its_functions_is_the_op(op: str, place: int, dims: Mapping[str, Value]) -> None:
    own = copy.copy(implementations(op)[place])
    reasons = own.unsupported
    # on the CPU, which the library does not run on
    vars(own)["device_types"] = frozenset({"cpu"})
    vars(own)["unsupported"] = lambda *asked: [one for one in reasons(*asked) if "NVIDIA" not in one]
    assert len(check_implementation(own, OPS[op], problems=[problem_of(op, **dims)], device="cpu").checked) > 1


def _functions() -> Iterator[Any]:
    for name, found in vars(flashinfer_stand_in).items():
        if name.endswith("Wrapper"):
            yield from (pytest.param(name, method, id=f"{name}.{method}") for method in ("__init__", "plan", "run"))
        elif inspect.isfunction(found) and found.__module__ == flashinfer_stand_in.__name__:
            yield pytest.param(name, "", id=name)


@pytest.mark.skipif(find_spec("flashinfer") is None, reason="FlashInfer is not installed")
@pytest.mark.parametrize(("name", "method"), [*_functions()])
def test_the_stand_in_has_the_library_s_signatures(name: str, method: str) -> None:
    own, theirs = getattr(flashinfer_stand_in, name), getattr(importlib.import_module("flashinfer"), name)
    if method:
        own, theirs = getattr(own, method), getattr(theirs, method)
    taken, known = inspect.signature(own).parameters, inspect.signature(theirs).parameters
    by_place = [each.name for each in taken.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_place == [*known][: len(by_place)]
    by_name = {each.name for each in taken.values() if each.kind is each.KEYWORD_ONLY}
    assert by_name <= {*known} or any(each.kind is each.VAR_KEYWORD for each in known.values())
