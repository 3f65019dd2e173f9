"""attention_varlen by FlashAttention 2 of torch without a GPU: what it returns and repairs, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from registry.artifact import Built, Signature
from registry.contract import as_tuple
from registry.contracts import ATTENTION_VARLEN as OP
from registry.discovery.catalog import Catalog
from registry.problem import Value
from registry_torch.attention import flash_varlen
from registry_torch.attention.flash_varlen import FlashVarlen, SizedFlashVarlen, clamped, right_sums

from .test_triton import H200, PACKED_SEQUENCES, problem_of

NAMES = ["torch.flash_varlen", "torch.flash_varlen_sized"]
SMALL: Mapping[str, Value] = {
    **PACKED_SEQUENCES, "sequences": 3, "heads": 4, "kv_heads": 2, "total_q": 75, "total_k": 90, "head_dim": 64,
}  # fmt: skip
PROBLEM: Any = None
"""What any-size runs do not read while they are bound."""
BUILT: Any = None


@pytest.mark.parametrize("more", [{}, {"span": 9}, {"causal": False, "span": 9}], ids=str)
def test_the_operator_takes_what_it_is_given_and_returns_what_the_op_promises(more: Mapping[str, Value]) -> None:
    # torch's rules for tensors without data check arguments and tell shapes; no GPU is needed
    problem = problem_of(OP.name, {**SMALL, **more})
    assert not list(FlashVarlen().unsupported(problem, H200)) or not torch.backends.cuda.is_flash_attention_available()
    values = OP.draw(problem, "normal", torch.Generator().manual_seed(0))
    arguments = OP.arguments(values)
    specs = OP.output_specs(arguments, torch.device("cpu"))
    run = FlashVarlen().bind(problem, {}, H200, Built(Signature(arguments, specs)))
    found = as_tuple(run((), tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in values), ()))
    for one, spec in zip(found, specs.values(), strict=True):
        assert (tuple(one.shape), one.dtype, one.stride()) == (spec.shape, spec.dtype, spec.strides)


@pytest.mark.parametrize(("form", "longest"), [(FlashVarlen(), (8, 8)), (SizedFlashVarlen(), (5, 4))], ids=str)
def test_the_kernel_is_told_the_longest_that_is_known(
    form: Any, longest: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(flash_varlen, "flash_packed", lambda _, offsets, most: told.append((offsets, most)) or ((), ()))
    q = k = torch.zeros(8, 2, 8)
    # wild offsets stay within the tensors
    offsets = torch.tensor([-4, 5, 80], dtype=torch.int32), torch.tensor([0, 4, 4], dtype=torch.int32)
    form.bind(PROBLEM, {}, H200, BUILT)((), (q, k, k, *offsets, True, None, 0.0, -1), ())
    ((given, most),) = told
    assert [each.tolist() for each in given] == [[0, 5, 8], [0, 4, 4]]
    assert most == longest


def test_the_kernel_is_never_told_that_all_sequences_have_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def forward(q: torch.Tensor, *given: Any, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        told.append(given[4:6])
        return torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", forward)
    q = k = torch.zeros(1, 2, 8)
    offsets = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    for form in (FlashVarlen(), SizedFlashVarlen()):
        form.bind(PROBLEM, {}, H200, BUILT)((), (q, k, k, offsets, offsets, True, None, 0.0, -1), ())
    assert told == [(2, 1), (2, 1)]


def test_clamped_offsets_stay_int32() -> None:
    found = clamped(torch.tensor([0, 3, 99], dtype=torch.int32), 7)
    assert (found.dtype, found.tolist()) == (torch.int32, [0, 3, 7])


def test_rows_without_keys_and_nan_rows_are_told_apart() -> None:
    out = torch.tensor([[[0.0]], [[math.nan]], [[2.0]]])
    found = right_sums(out, torch.tensor([[math.inf, math.inf, 1.5]]))
    torch.testing.assert_close(found, torch.tensor([[-math.inf, math.nan, 1.5]]), equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("more", "dtype", "reason"),
    [
        ({}, "float32", "dtype is float32, expected float16 or bfloat16"),
        ({"softcap": True}, "bfloat16", "it has no soft cap"),
        ({"head_dim": 264}, "bfloat16", "head_dim=264 (limit 256)"),
        ({"head_dim": 20}, "bfloat16", "head_dim=20 is no multiple of 8"),
    ],
    ids=str,
)
def test_reasons_are_told(catalog: Catalog, name: str, more: Mapping[str, Value], dtype: str, reason: str) -> None:
    problem = problem_of(OP.name, {**SMALL, **more}, dtype)
    assert reason in list(catalog.implementation(OP.name, name).unsupported(problem, H200))


def test_what_reads_the_offsets_on_the_host_is_not_captured(catalog: Catalog) -> None:
    assert [catalog.implementation(OP.name, name).capturable for name in NAMES] == [True, False]
