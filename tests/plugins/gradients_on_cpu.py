"""cuda.wgmma's two gradients of attention: devices for them, what compiles, and their kernels' very texts on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from registry.artifact import Signature, Variant
from registry.contracts import ATTENTION_BACKWARD, ATTENTION_VARLEN, ATTENTION_VARLEN_BACKWARD
from registry.correctness import numerics
from registry.problem import Problem, Value
from registry.space import Config
from registry_cuda.attention.backward import WgmmaAttentionBackward
from registry_cuda.attention.gradient import Pass, WgmmaBackward, passes_of
from registry_cuda.attention.varlen_backward import PackedWgmmaAttentionBackward

from .attention_on_cpu import Attend, Change, Emulation, Late, Maps, Rooms
from .wgmma_attention import H200, SMALL_H200

CONTRACTS = {op.name: op for op in (ATTENTION_BACKWARD, ATTENTION_VARLEN_BACKWARD)}
OF_BATCH, OF_PACKED = WgmmaAttentionBackward(), PackedWgmmaAttentionBackward()
SMALL: Mapping[str, Value] = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 150, "kv_len": 150, "head_dim": 64, "causal": True, "mask": "none",
    "softcap": False, "span": False, "dtype": "bfloat16",
}  # fmt: skip
PACKED: Mapping[str, Value] = {
    "sequences": 5, "heads": 4, "kv_heads": 2, "total_q": 250, "total_k": 250, "head_dim": 64, "causal": True,
    "softcap": False, "span": False, "lengths": "skewed", "dtype": "bfloat16",
}  # fmt: skip


def implementation_of(problem: Problem) -> WgmmaBackward:
    return OF_BATCH if problem.op == "attention_backward" else OF_PACKED


def variants_of(problem: Problem, config: Config) -> tuple[Variant, ...]:
    """The variants of the rows' terms, of the pass by keys, and of that by queries."""
    arguments, implementation = problem.traits.arguments, implementation_of(problem)
    assert arguments is not None
    outputs = CONTRACTS[problem.op].output_specs(arguments, torch.device("cpu"))
    signature = Signature(arguments, outputs, implementation.scratch(problem, config, H200))
    return implementation.variants(problem, config, H200, signature)


def of_each_form(problem: Problem) -> list[Config]:
    """Configurations that have every form of both passes."""
    space = implementation_of(problem).space(problem, H200)
    by_keys = {(config["key_warpgroups"], config["queries"]): config for config in space}
    by_queries = {(config["query_warpgroups"], config["keys"]): config for config in space}
    return [*by_keys.values(), *by_queries.values()]


def config_of(problem: Problem, wanted: Mapping[str, Value]) -> Config:
    """The first configuration with what is wanted, of two warpgroups and small blocks where nothing is said."""
    space = implementation_of(problem).space(problem, SMALL_H200).configs
    fit = [config for config in space if all(config[name] == value for name, value in wanted.items())]
    return min(fit, key=lambda config: (_apart(config), config["queries"], config["keys"]))


def built(problem: Problem, config: Config, folder: Path, change: Change | None = None) -> Attend:
    """A function of the op's values that runs its kernels one after the other.

    ``change`` is one of the passes' text. It raises RuntimeError for what a GPU forbids, for threads that wait for
    ever, and for writes beside the gradients and terms.
    """
    contract, implementation = CONTRACTS[problem.op], implementation_of(problem)
    assert not list(implementation.unsupported(problem, SMALL_H200))
    assert config in implementation.space(problem, SMALL_H200)
    terms, *others = implementation.launch(problem, config, SMALL_H200)
    emulations = [Emulation(terms, "row_terms.cuh", 0, folder)]
    emulations += [Emulation(each, "gradient.cuh", 4, folder, change) for each in others]

    def differentiate(*values: Any, late: Late = Late.NONE) -> tuple[torch.Tensor, ...]:
        arguments = contract.arguments(values)
        posed, named = contract.pose(arguments), dict(zip(contract.parsed.names, values, strict=True))
        rooms = Rooms(contract.output_specs(arguments, torch.device("cpu")))
        scratch = Rooms(implementation.scratch(posed, config, SMALL_H200))
        launches = implementation.launch(posed, config, SMALL_H200)
        maps: list[Maps] = [[], *(_maps(posed, one) for one in passes_of(posed, config))]
        given = {**named, **rooms.tensors, **scratch.tensors}
        for launch, emulation, each in zip(launches, emulations, maps, strict=True):
            emulation(launch, each, given, late, scratch.tensors["terms"])
        scratch.check()
        # every term is written, also of rows that are not there
        finite = all(named[name].isfinite().all() for name in ("lse", "grad_out", "out"))
        assert not finite or not scratch.tensors["terms"].isnan().any()
        rooms.check()
        return tuple(rooms.tensors.values())

    return differentiate


def of_others_not_finite() -> tuple[Problem, tuple[Any, ...]]:
    """Three sequences, of which the first and the last have tensors that are no numbers."""
    offsets = torch.tensor([0, 70, 100, 90]).cumsum(0, dtype=torch.int32)
    generator = torch.Generator().manual_seed(1)
    grad_out, q, k, v = (torch.randn(260, count, 64, generator=generator).bfloat16() for count in (4, 4, 2, 2))
    out, lse = ATTENTION_VARLEN.reference(q, k, v, offsets, offsets, True)
    for x in (grad_out, q, k, v, out):
        x[:70], x[170:] = torch.nan, torch.inf
    values = ATTENTION_VARLEN_BACKWARD.bind((grad_out, q, k, v, offsets, offsets, out, lse), {"causal": True})
    return ATTENTION_VARLEN_BACKWARD.pose(ATTENTION_VARLEN_BACKWARD.arguments(values)), values


def second_is_right(differentiate: Attend, values: tuple[Any, ...], late: Late) -> bool:
    own = slice(70, 170)
    grad_out, q, k, v, _, _, out = (x[None, own] if len(x.shape) > 1 else x for x in values[:7])
    bound = (grad_out, q, k, v, None, out, values[7][None, :, own])
    expected = numerics.reference64(ATTENTION_BACKWARD, ATTENTION_BACKWARD.bind(bound, {"causal": True}))
    found = differentiate(*values, late=late)
    return all(
        torch.allclose(one[own].double(), other[0], 3e-2, 3e-2) for one, other in zip(found, expected, strict=True)
    )


def _maps(problem: Problem, one: Pass) -> Maps:
    tiles = implementation_of(problem).tiles
    heights = [*((name, one.rows) for name in one.held), *((name, one.block) for name in one.streamed)]
    return [(name, tiles(problem, name, height)) for name, height in heights]


def _apart(config: Config) -> int:
    return abs(int(config["key_warpgroups"]) - 2) + abs(int(config["query_warpgroups"]) - 2)
