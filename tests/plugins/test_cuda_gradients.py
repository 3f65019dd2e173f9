"""cuda.wgmma's gradients of attention: reasons, spaces and defaults, launches, variants, kernels compiled."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from registry.artifact import Variant
from registry.backends.cuda import nvrtc
from registry.contracts import ATTENTION_BACKWARD, ATTENTION_VARLEN_BACKWARD
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem, Value

from ..tiers import THOROUGH
from .gradients_on_cpu import CONTRACTS, OF_BATCH, OF_PACKED, implementation_of, of_each_form, variants_of
from .wgmma_attention import A100, H200

pytest.importorskip("cuda.core")

LONG: Mapping[str, Value] = {
    "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 8192, "kv_len": 8192, "head_dim": 128, "causal": True,
    "mask": "none", "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
LONG_PACKED: Mapping[str, Value] = {
    "sequences": 8, "heads": 32, "kv_heads": 8, "total_q": 8192, "total_k": 8192, "head_dim": 128, "causal": True,
    "softcap": False, "span": False, "lengths": "uniform", "dtype": "bfloat16",
}  # fmt: skip
OPS = ("attention_backward", "attention_varlen_backward")
MOST_WAITS = 7
"""For products: three in each of two steps, of blocks with and without a mask, and one behind the last step."""


def problem_of(op: str = "attention_backward", **more: Value) -> Problem:
    return CONTRACTS[op].problem_of({**(LONG if op == "attention_backward" else LONG_PACKED), **more})


def posed(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor | None = None, **more: object) -> Problem:
    """The problem of a batch, whose values lie like its keys; ``more``: attributes, or ``lse``."""
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    lse = more.pop("lse", torch.empty(q.shape[0], q.shape[2], q.shape[1], device="meta"))
    values = ATTENTION_BACKWARD.bind((out, q, k, k, None, out, lse), {"causal": True, **more})
    return ATTENTION_BACKWARD.pose(ATTENTION_BACKWARD.arguments(values))


def posed_packed(tokens: int, keys: int, step: int = 1) -> Problem:
    offsets = torch.empty(4 * step, dtype=torch.int32, device="meta")[::step]
    q, k = (torch.empty(count, 4, 64, dtype=torch.bfloat16, device="meta") for count in (tokens, keys))
    values = ATTENTION_VARLEN_BACKWARD.bind(
        (q, q, k, k, offsets, offsets, q, torch.empty(4, tokens, device="meta")), {"causal": True}
    )
    return ATTENTION_VARLEN_BACKWARD.pose(ATTENTION_VARLEN_BACKWARD.arguments(values))


def heads(length: int, count: int, dim: int = 128, batch: int = 2) -> torch.Tensor:
    return torch.empty(batch, length, count, dim, dtype=torch.bfloat16, device="meta")


def reasons(problem: Problem, device: Device = H200) -> list[str]:
    return list(implementation_of(problem).unsupported(problem, device))


@pytest.mark.parametrize("op", OPS)
def test_every_reason_is_given(op: str) -> None:
    assert reasons(problem_of(op)) == reasons(problem_of(op, softcap=True, span=64, head_dim=256)) == []
    assert [reason.split()[0] for reason in reasons(problem_of(op), A100)] == ["wgmma"]
    assert reasons(problem_of(op, dtype="float32")) == ["dtype is float32, expected bfloat16 or float16"]
    assert reasons(problem_of(op, head_dim=264)) == ["head_dim=264 is no multiple of 8 up to 256"]
    assert "head_dim=20 is no multiple of 8 up to 256" in reasons(problem_of(op, head_dim=20))


def preferred(catalog: Catalog, problem: Problem) -> str:
    """The implementation that an untuned call on an H200 runs, of those that are part of torch and of the project."""
    offered = [one for one in catalog.implementations(problem.op) if not one.name.startswith("flash_attn.")]
    able = [one for one in offered if "cuda" in one.device_types and not any(one.unsupported(problem, H200))]
    return max(able, key=lambda one: one.preference(problem, H200)).name


def test_an_untuned_call_runs_what_was_faster_where_both_were_measured(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    long, short = {"q_len": 8192, "kv_len": 8192}, {"q_len": 2048, "kv_len": 2048}
    assert preferred(catalog, problem_of("attention_backward", **long)) == "torch.sdpa_cudnn"
    for dims in (short, {**long, "head_dim": 64}, {**long, "softcap": True}, {**long, "span": 4096}):
        assert preferred(catalog, problem_of("attention_backward", **dims)) == "cuda.wgmma"
    packed = {"total_q": 8192, "total_k": 8192}
    assert preferred(catalog, problem_of("attention_varlen_backward", sequences=32, **packed)) == "cuda.wgmma"
    assert preferred(catalog, problem_of("attention_varlen_backward", sequences=512, **packed)) == "triton.flash"


def test_reasons_of_a_batch_are_given() -> None:
    assert reasons(problem_of(mask="bool")) == ["it takes no mask"]
    assert "counted in 32 bits" in reasons(problem_of(q_len=2**30, kv_len=2**30))[0]
    assert "there is no query or no key" in reasons(posed(heads(64, 4), heads(0, 4)))
    assert reasons(posed(heads(64, 4), heads(64, 4), scale=-2.0)) == []
    turned = torch.empty(2, 64, 4, device="meta").transpose(1, 2)
    assert reasons(posed(heads(64, 4), heads(64, 4), lse=turned)) == ["lse is not contiguous"]


def test_reasons_of_packed_sequences_are_given() -> None:
    assert reasons(posed_packed(64, 70)) == []
    assert "there is no query, no key or no sequence" in reasons(posed_packed(64, 0))
    assert reasons(posed_packed(64, 64, step=2)) == ["cu_seqlens_q is not contiguous", "cu_seqlens_k is not contiguous"]


def test_layouts_that_the_copy_engine_does_not_take_are_refused() -> None:
    q, k = heads(64, 4), heads(64, 4)
    assert "is expanded" in reasons(posed(q, heads(64, 1).expand(-1, -1, 4, -1)))[0]
    apart = torch.empty(2, 64, 4, 132, dtype=torch.bfloat16, device="meta")[..., :128]
    assert [reason.split()[3] for reason in reasons(posed(q, k, apart))] == ["grad_out", "out"]
    turned = torch.empty(2, 64, 128, 4, dtype=torch.bfloat16, device="meta").transpose(2, 3)
    assert "not neighbours" in reasons(posed(turned, k))[0]


def test_heads_are_read_where_they_lie() -> None:
    q, k, _ = torch.empty(2, 300, 12, 128, dtype=torch.float16, device="meta").split([8, 2, 2], 2)
    before = heads(300, 8).half().transpose(1, 2).contiguous().transpose(1, 2)
    problem = posed(q, k, before)
    assert reasons(problem) == []
    tiles = OF_BATCH.tiles(problem, "grad_out", 64)
    assert tiles is not None
    assert (tiles.sizes, tiles.strides) == ((128, 300, 8, 2), (256, 300 * 256, 8 * 300 * 256))
    tiles = OF_BATCH.tiles(problem, "k", 64)
    assert tiles is not None
    assert (tiles.sizes, tiles.strides) == ((128, 300, 2, 2), (12 * 256, 256, 300 * 12 * 256))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("head_dim", [8, 64, 72, 128, 192, 256])
@pytest.mark.parametrize("softcap", [True, False])
@pytest.mark.few(4)
def test_spaces_hold_their_default_and_fit_shared_memory(op: str, head_dim: int, softcap: bool) -> None:
    problem = problem_of(op, head_dim=head_dim, softcap=softcap)
    implementation = implementation_of(problem)
    space = implementation.space(problem, H200)
    assert implementation.default(problem, H200) in space
    assert (9 if head_dim > 128 else 20) <= len(space) <= 100
    for config in space:
        launches = implementation.launch(problem, config, H200)
        assert len(launches) == (4 if head_dim > 128 else 3)
        for launch in launches[1:]:
            assert launch.shared_bytes <= 227 * 1024
            assert launch.constants["STAGES"] >= 2
            assert math.prod(launch.grid) == 132


def test_terms_have_room_for_each_sequences_last_block() -> None:
    config = {**OF_PACKED.default(problem_of(OPS[1]), H200), "queries": 96}
    shape = OF_PACKED.scratch(problem_of(OPS[1], sequences=300, total_q=1000), config, H200)["terms"].shape
    assert shape == (32 * (1000 // 96 + 300), 2, 96)
    assert OF_BATCH.scratch(problem_of(q_len=97), config, H200)["terms"].shape == (64, 2, 96)


def test_one_variant_serves_all_sizes_and_scales() -> None:
    config = OF_BATCH.default(problem_of(), H200)
    sizes = [(1, 300, 700), (2, 8192, 8192), (64, 1, 5)]
    problems = [posed(heads(q, 32, batch=batch), heads(kv, 8, batch=batch)) for batch, q, kv in sizes]
    problems.append(posed(heads(64, 32), heads(64, 8), scale=0.5))
    assert len({tuple(each.key for each in variants_of(problem, config)) for problem in problems}) == 1


def test_a_pass_is_compiled_once_for_all_blocks_of_the_other() -> None:
    problem = problem_of()
    found = {variant.key for config in OF_BATCH.space(problem, H200) for variant in variants_of(problem, config)}
    space = OF_BATCH.space(problem, H200)
    forms = [{(config[first], config[second]) for config in space} for first, second in
             (("key_warpgroups", "queries"), ("query_warpgroups", "keys"))]  # fmt: skip
    terms = {config["queries"] for config in space}
    assert len(found) == len(terms) + sum(map(len, forms))


@pytest.mark.parametrize(
    "needs", [(True, True, True), (False, True, False), (True, False, False), (False, False, False)]
)
def test_only_passes_whose_gradients_are_needed_are_launched(needs: tuple[bool, bool, bool]) -> None:
    attributes = dict(zip(("need_q", "need_k", "need_v"), needs, strict=True))
    problem = posed(heads(64, 4), heads(64, 4), **attributes)
    _, *passes = OF_BATCH.launch(problem, OF_BATCH.default(problem, H200), H200)
    by_keys = [bool(launch.constants["BY_KEYS"]) for launch in passes]
    assert by_keys == [True] * (needs[1] or needs[2]) + [False] * needs[0]
    assert all(launch.constants["NEED_SECOND"] == (needs[2] and launch.constants["BY_KEYS"]) for launch in passes)


@pytest.mark.parametrize(("needs", "pairs"), [((True, True), [(1, 0), (0, 1)]), ((False, True), [(0, 1)])])
def test_keys_and_values_of_long_heads_have_a_pass_each(
    needs: tuple[bool, bool], pairs: list[tuple[bool, bool]]
) -> None:
    k = heads(64, 4, dim=256)
    problem = posed(heads(64, 8, dim=256), k, need_k=needs[0], need_v=needs[1])
    _, *passes, of_queries = OF_BATCH.launch(problem, OF_BATCH.default(problem, H200), H200)
    made = [(launch.constants["NEED_FIRST"], launch.constants["NEED_SECOND"]) for launch in (*passes, of_queries)]
    assert made == [*pairs, (True, False)]


def machine_code(path: Path) -> str:
    """The instructions of a compiled kernel, by the disassembler that comes with Triton."""
    triton = find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    disassembler = Path(triton.origin).parent / "backends/nvidia/bin/nvdisasm"
    cubin, found = path.with_suffix(".cubin"), nvrtc.read(path)
    assert found is not None
    cubin.write_bytes(found.code)
    done = subprocess.run([str(disassembler), "-c", str(cubin)], capture_output=True, text=True, check=True)
    cubin.unlink()
    return done.stdout


COMPILED: list[tuple[str, Mapping[str, Value]]] = [
    ("attention_backward", {}),
    ("attention_backward", {"head_dim": 64, "causal": False, "dtype": "float16"}),
    ("attention_backward", {"head_dim": 96, "span": 1024, "causal": False}),
    ("attention_backward", {"head_dim": 40, "span": 300}),
    ("attention_backward", {"span": 300, "softcap": True}),
    ("attention_backward", {"span": 300, "softcap": True, "causal": False, "head_dim": 64}),
    ("attention_backward", {"head_dim": 192, "span": 300}),
    ("attention_backward", {"head_dim": 256, "softcap": True}),
    ("attention_varlen_backward", {}),
    ("attention_varlen_backward", {"head_dim": 256, "span": 300}),
    ("attention_varlen_backward", {"head_dim": 64, "causal": False}),
    ("attention_varlen_backward", {"span": 300, "softcap": True, "dtype": "float16"}),
    ("attention_varlen_backward", {"span": 300, "causal": False, "softcap": True, "head_dim": 64}),
]


def check_compiled(problem: Problem, variant: Variant) -> None:
    """No spills, and no waits but the text's: ptxas has each product waited for where it finds its registers in use."""
    artifact = implementation_of(problem).compile(variant, H200.target)
    told = {name: variant.spec["constants"].get(name) for name in ("BY_KEYS", "WARPGROUPS", "BLOCK")}
    assert (artifact.resources["spill_bytes"], artifact.resources["stack_bytes"]) == (0, 0), told
    assert artifact.resources["threads"] * artifact.resources["registers"] <= 65_536
    code = machine_code(Path(artifact.path))
    waits, products = (len(re.findall(word, code)) for word in (r"WARPGROUP\.DEPBAR", "HGMMA"))
    assert waits <= MOST_WAITS, told
    assert 3 * waits <= products + 1, told
    assert bool(products) == ("BLOCK" in variant.spec["constants"])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.few(1)
def test_the_default_compiles_without_spills_and_without_products_one_by_one(op: str) -> None:
    problem = problem_of(op)
    for variant in variants_of(problem, implementation_of(problem).default(problem, H200)):
        check_compiled(problem, variant)


@pytest.mark.parametrize(("op", "more"), COMPILED, ids=str)
@THOROUGH
def test_every_form_compiles_without_spills_and_without_products_one_by_one(op: str, more: Mapping[str, Value]) -> None:
    problem = problem_of(op, **more)
    found = {each.key: each for config in of_each_form(problem) for each in variants_of(problem, config)}
    for variant in found.values():
        check_compiled(problem, variant)
