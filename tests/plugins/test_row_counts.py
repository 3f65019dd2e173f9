"""What is said of many row counts is what each implementation says of every single one: grids, numbers, scratch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import registry_cuda
import registry_triton
from registry.artifact import Signature
from registry.backends.triton.launch import full_grid
from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.leading import leadings
from registry.dispatch.plans.sized_plan import Sized, sized
from registry.errors import RegistryError
from registry.implementation import Implementation
from registry.problem import Problem, TensorSpec
from registry.space import Config
from registry.symbolic import MOST_ROWS, settled, value_at

OPS = {op.name: op for op in BOX}
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
INT4 = {"n": 256, "k": 512, "group_size": 128, "bits": 4}
ROWS: Sequence[Mapping[str, Any]] = [{"rows": rows, "cols": cols} for rows in (1, 40) for cols in (33, 4096, 16384)]
DIMS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "softmax": ROWS,
    "rms_norm": ROWS,
    "gemm_int4": [{"m": m, **INT4, "symmetric": symmetric} for m in (1, 3, 40, 100) for symmetric in (False, True)],
    "vector_add": [{"n": 5000}],
    "square": [{"n": 5000}],
    "gelu": [{"n": 5000, "approximate": "none"}],
}
HOOKS: Mapping[str, Callable[[], Sequence[Implementation]]] = {
    f"{package.__name__} {op}": getattr(package, f"{op}_implementations")
    for package in (registry_triton, registry_cuda)
    for op in DIMS
    if hasattr(package, f"{op}_implementations")
}
CASES = [
    pytest.param(implementation, dims, id=f"{implementation.name} {implementation.op} {list(dims.values())[:2]}")
    for hook in HOOKS.values()
    for implementation in hook()
    for dims in DIMS[implementation.op]
    if hasattr(implementation, "launch")
    and not list(implementation.unsupported(OPS[implementation.op].problem_of({**dims, "dtype": "bfloat16"}), H200))
]


def opened(op_name: str, dims: Mapping[str, Any]) -> Sized:
    """A real call's problem with its leading sizes left open."""
    op = OPS[op_name]
    problem = op.problem_of({**dims, "dtype": "bfloat16"})
    arguments = op.arguments(op.inputs(problem, op.kinds[0], torch.Generator().manual_seed(0)))
    aligned = {
        name: replace(value, alignment=16) if isinstance(value, TensorSpec) else value
        for name, value in arguments.values.items()
    }
    arguments = replace(arguments, values=aligned)
    return sized(op, arguments, leadings(arguments, next(iter(arguments.tensors)))[0])


def said(implementation: Implementation, problem: Problem, config: Config, signature: Signature) -> dict[str, Any]:
    """Everything that a launch is made of."""
    made: Any = implementation.launch(problem, config, H200)  # type: ignore[attr-defined]
    launches = made if isinstance(made, Sequence) else [made]
    return {
        "grids": [full_grid(launch.grid, "") for launch in launches],
        "arguments": [tuple(launch.args) for launch in launches],
        "constants": [{name: settled(value) for name, value in launch.constants.items()} for launch in launches],
        "scratch": [spec.shape for spec in implementation.scratch(problem, config, H200).values()],
        "strides": [spec.strides for spec in implementation.scratch(problem, config, H200).values()],
        "variants": [variant.key for variant in implementation.variants(problem, config, H200, signature)],
    }


def at(value: Any, rows: int) -> Any:
    if isinstance(value, dict):
        return {name: at(one, rows) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(at(one, rows) for one in value)
    return value_at(value, rows)


def asked(implementation: Implementation, call: Sized, config: Config) -> tuple[Signature, dict[str, Any]]:
    """What an implementation says of many row counts; narrows the call's interval."""
    with call.interval.free_text():
        assert not any(True for _ in implementation.unsupported(call.problem, H200))
    plain = call.at(call.interval.rows)
    specs = call.op.output_specs(call.actual, torch.device("cpu"))
    prepared = {
        name: TensorSpec.contiguous((1,), torch.int32) for name in implementation.prepared(call.problem, config)
    }
    signature = Signature(call.actual, specs, implementation.scratch(plain, config, H200), prepared)
    return signature, said(implementation, call.problem, config, signature)


def configurations(implementation: Implementation, problem: Problem) -> list[Config]:
    """The default and a few more."""
    every = list(implementation.space(problem, H200).configs)
    return [implementation.default(problem, H200), *random.Random(1).sample(every, min(3, len(every)))]


@pytest.mark.parametrize(("implementation", "dims"), CASES)
def test_one_launch_of_many_row_counts_is_that_of_each(implementation: Implementation, dims: Mapping[str, Any]) -> None:
    draw = random.Random(0)
    rows = opened(implementation.op, dims).interval.rows
    for config in configurations(implementation, opened(implementation.op, dims).at(rows)):
        call = opened(implementation.op, dims)
        assert config in implementation.space(call.problem, H200)
        signature, many = asked(implementation, call, config)
        lo, hi = call.interval.lo, call.interval.hi
        assert not call.interval.unsound
        near = [lo, lo + 1, rows - 1, rows, rows + 1, hi - 1, hi]
        for other in [*near, *(draw.randint(lo, min(hi, 10**5)) for _ in range(10))]:
            if other in call.interval:
                plain = call.at(other)
                assert not list(implementation.unsupported(plain, H200))
                assert config in implementation.space(plain, H200)
                assert said(implementation, plain, config, signature) == at(many, other), (config, other)


@pytest.mark.parametrize(("implementation", "dims"), CASES)
def test_beyond_the_interval_something_is_different(implementation: Implementation, dims: Mapping[str, Any]) -> None:
    call = opened(implementation.op, dims)
    config = implementation.default(call.at(call.interval.rows), H200)
    signature, many = asked(implementation, call, config)

    def differs(rows: int) -> bool:
        plain = call.at(rows)
        if list(implementation.unsupported(plain, H200)):
            return True
        try:
            return bool(said(implementation, plain, config, signature) != at(many, rows))
        except RegistryError:
            return True

    if call.interval.hi < MOST_ROWS:
        assert differs(call.interval.hi + 1), (call.interval.hi, call.interval.reason)
    if call.interval.lo > 1:
        assert differs(call.interval.lo - 1), (call.interval.lo, call.interval.reason)


def test_most_of_the_kernels_of_a_model_serve_every_row_count() -> None:
    open_ended = {
        implementation.name
        for implementation in registry_triton.softmax_implementations()
        for dims in ({"rows": 100, "cols": 4096},)
        if not list(implementation.unsupported(OPS["softmax"].problem_of({**dims, "dtype": "bfloat16"}), H200))
        for call in [opened("softmax", dims)]
        if asked(implementation, call, implementation.default(call.at(100), H200))
        and (call.interval.lo, call.interval.hi) == (1, MOST_ROWS)
    }
    assert open_ended == {"triton.row", "triton.online"}


@pytest.mark.parametrize(
    ("name", "op", "dims", "config", "expected"),
    [
        ("triton.split", "softmax", {"rows": 40, "cols": 16384},
         {"SPLITS": 4, "BLOCK": 1024, "num_warps": 4, "num_stages": 1}, (1, 528)),
        ("triton.gemm", "gemm_int4", {"m": 100, **INT4, "symmetric": True},
         {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}, (1, MOST_ROWS)),
        ("triton.splitk", "gemm_int4", {"m": 100, **INT4, "symmetric": True},
         {"BLOCK_N": 64, "BLOCK_K": 64, "SPLIT_K": 2, "SWAP": False, "num_warps": 4, "num_stages": 3}, (33, 512)),
    ],
)  # fmt: skip
def test_intervals_end_where_the_kernel_changes(
    name: str, op: str, dims: Mapping[str, Any], config: Config, expected: tuple[int, int]
) -> None:
    implementation = next(one for one in HOOKS[f"registry_triton {op}"]() if one.name == name)
    call = opened(op, dims)
    asked(implementation, call, config)
    assert (call.interval.lo, call.interval.hi) == expected, call.interval.reason


def test_a_grid_that_is_too_large_ends_the_interval() -> None:
    call = opened("softmax", {"rows": 40, "cols": 33})
    interval = call.interval
    full_grid((call.problem.rows * 16, 1), "")
    assert interval.hi == (2**31 - 1) // 16
    full_grid((1, call.problem.rows // 2), "")
    assert interval.hi == 2 * 65535 + 1
