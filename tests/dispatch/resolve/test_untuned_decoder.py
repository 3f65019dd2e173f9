"""A decoder on a CPU that was never tuned: a decode step runs the kernel of the C++ plugin, where that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry import Device, shipped
from registry.discovery.catalog import Catalog
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.situation import Situation
from registry.dispatch.resolve.winners import Winners

UNKNOWN = replace(Device.of("cpu"), name="An unknown CPU")
"""A CPU that no winner was measured on."""


def first_choice(dims: dict[str, Any], without: str = "no plugin") -> str:
    """The default's name for a problem of row-major tensors; ``without``: a prefix of implementations to leave out."""
    catalog = Catalog()
    op = catalog.op("attention_decode")
    able = [one for one in catalog.implementations(op.name) if not one.name.startswith(without)]
    situation = Situation(op, op.problem_of(dims), UNKNOWN, able, Winners().of(op, UNKNOWN))
    chosen = next(choices(situation, None, []))
    assert chosen.step == "default"
    assert chosen.candidate is not None
    return chosen.candidate.implementation.name


def decode(
    batch: int, heads: int, kv_heads: int, kv_len: int, head_dim: int = 64, dtype: str = "bfloat16"
) -> dict[str, Any]:
    """The dimensions of attention_decode over a static cache of ``kv_len`` tokens."""
    return {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": 1, "kv_len": kv_len, "head_dim": head_dim,
        "page": False, "span": False, "kv_dtype": "auto", "softcap": False, "lengths": "full", "dtype": dtype,
    }  # fmt: skip


DECODERS = [
    decode(1, 8, 2, 4096),
    decode(1, 32, 8, 131_072, 128),
    decode(2, 14, 2, 300, dtype="float32"),
    decode(16, 32, 32, 2048, 128, "float32"),
    decode(8, 12, 12, 128),
]


@pytest.mark.parametrize("with_shipped", ["1", "0"])
@pytest.mark.parametrize("dims", DECODERS, ids=str)
@pytest.mark.few(4)
def test_decode_steps_run_the_kernel_with_shipped_rules_and_without(
    dims: dict[str, Any], with_shipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", with_shipped)
    shipped.forget()
    assert first_choice(dims) == "cpp.groups"


def test_without_the_plugin_torch_runs_them() -> None:
    assert first_choice(DECODERS[0], without="cpp.") == "torch.native"
