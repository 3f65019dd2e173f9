"""attention on a CPU with NaN queries, NaN keys and rows that see no key: what each implementation returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from registry.contracts import ATTENTION as OP
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry_torch.attention import aten
from registry_torch.attention.compiled import attend_at_once
from registry_torch.attention.flash_cpu import needs_formula

CPU = Device.of("cpu")
Spoil = Callable[[torch.Tensor, torch.Tensor], Any]
SPOILED: dict[str, Spoil] = {
    "nothing": lambda q, k: None,
    "query": lambda q, k: q[0, q.shape[1] // 2, 1].fill_(math.nan),
    "an element of the last query": lambda q, k: q[0, -1, 1, 3].fill_(math.nan),
    "first key": lambda q, k: k[0, 0, 1].fill_(math.nan),
    "last key": lambda q, k: k[0, -1, 1, 2].fill_(math.nan),
    "all keys": lambda q, k: k[0].fill_(math.nan),
    "an infinite key": lambda q, k: k[0, k.shape[1] // 2, 1, 3].fill_(math.inf),
}
FORMS = ["whole", "causal", "bool", "additive"]


def values_of(form: str, keys: int, dtype: torch.dtype, spoil: Spoil) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, keys, 4, 16, generator=generator).to(dtype)
    k, v = (torch.randn(2, keys, 2, 16, generator=generator).to(dtype) for _ in range(2))
    spoil(q, k)
    mask = None
    if form in {"bool", "additive"}:
        mask = torch.rand(2, 1, keys, keys, generator=generator) > 0.3
        mask[:, :, ::5] = False
        if form == "additive":
            mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)
    return q, k, v, mask, form == "causal", None, 0.0, -1


def compare(found: Any, values: tuple[Any, ...]) -> None:
    """NaN, infinities and numbers are where the reference has them."""
    tolerance = 1e-5 if values[0].dtype == torch.float32 else 3e-2
    right: Any = OP.reference(*values)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["torch.native", "torch.flash_cpu"])
@pytest.mark.few(9)
def test_nan_and_rows_without_keys_are_the_references(catalog: Catalog, name: str, form: str, spoil: str) -> None:
    for keys in (1, 8, 17, 40):
        for dtype in (torch.float32, torch.bfloat16):
            values = values_of(form, keys, dtype, SPOILED[spoil])
            arguments = OP.arguments(values)
            problem = OP.pose(arguments)
            implementation = catalog.implementation("attention", name)
            assert not list(implementation.unsupported(problem, CPU))
            compare(build(OP, Candidate(implementation, {}), problem, arguments, CPU)(*values), values)


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.few(2)
def test_what_torch_compiles_has_them_too(form: str, spoil: str) -> None:
    for keys in (1, 8, 40):
        values = values_of(form, keys, torch.float32, SPOILED[spoil])
        compare(attend_at_once(*values), values)


@pytest.mark.thorough
def test_compiled_code_has_them_too(catalog: Catalog) -> None:
    values = values_of("bool", 8, torch.float32, SPOILED["query"])
    arguments = OP.arguments(values)
    implementation = catalog.implementation("attention", "torch.compile")
    compare(build(OP, Candidate(implementation, {}), OP.pose(arguments), arguments, CPU)(*values), values)


def test_all_implementations_of_a_cpu_are_here(catalog: Catalog) -> None:
    problem = OP.problem_of({
        "batch": 1, "heads": 2, "kv_heads": 2, "q_len": 8, "kv_len": 8, "head_dim": 16, "causal": True, "mask": "none",
        "softcap": False, "span": False, "dtype": "float32",
    })  # fmt: skip
    here = {
        each.name
        for each in catalog.implementations("attention")
        if "cpu" in each.device_types and not list(each.unsupported(problem, CPU))
    }
    assert here == {"torch.native", "torch.compile", "torch.flash_cpu"}


def test_only_a_row_without_keys_may_have_a_log_sum_exp_of_0() -> None:
    lse = torch.tensor([1.5, 0.0, -3.0])
    assert needs_formula(lse, None)
    assert not needs_formula(lse, torch.tensor([False, True, False]))
    assert not needs_formula(torch.tensor([1.0, 2.0]), None)
    for wrong in (math.nan, math.inf, -math.inf):
        assert needs_formula(torch.tensor([1.0, wrong]), None)


def test_finite_calls_are_left_to_torchs_kernel(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    kernel = aten.cpu
    monkeypatch.setattr(aten, "cpu", lambda *given: asked.append(1) or kernel(*given))
    monkeypatch.setattr("registry_torch.attention.flash_cpu.attend", lambda _: pytest.fail("the formula ran"))
    for form in FORMS:
        values = values_of(form, 40, torch.float32, SPOILED["nothing"])
        arguments = OP.arguments(values)
        implementation = catalog.implementation("attention", "torch.flash_cpu")
        build(OP, Candidate(implementation, {}), OP.pose(arguments), arguments, CPU)(*values)
    assert len(asked) == len(FORMS)
