"""cuda.mma of attention_decode: reasons, spaces and defaults, what a variant depends on, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from registry.artifact import Signature
from registry.contracts import ATTENTION_DECODE as OP
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Arguments
from registry.space import Config
from registry_cuda.attention_decode import MmaDecode

pytest.importorskip("cuda.core")

H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 << 30, 60 << 20)
A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
DECODE = MmaDecode()
DIMS: dict[str, Any] = {
    "batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 1024, "head_dim": 128, "page": 16, "span": False,
    "kv_dtype": "auto", "softcap": False, "dtype": "bfloat16",
}  # fmt: skip
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"page": False, "dtype": "float16", "head_dim": 64},
    {"q_len": 4, "kv_dtype": "float8_e4m3fn", "span": 100},
    {"page": 4, "softcap": True, "q_len": 3},
)
EACH = pytest.mark.parametrize("dims", FORMS, ids=[",".join(map(str, form.values())) or "usual" for form in FORMS])


def drawn(**dims: Any) -> Arguments:
    problem = OP.problem_of({**DIMS, "lengths": "full", **dims})
    return OP.arguments(OP.inputs(problem, "normal", torch.Generator().manual_seed(1)))


def told(device: Device = H200, **dims: Any) -> list[str]:
    return list(DECODE.unsupported(OP.problem_of({**DIMS, "lengths": "full", **dims}), device))


def test_every_reason_is_given() -> None:
    assert not told()
    assert not told(A100)
    (kind,) = told(dtype="float32")
    assert kind == "dtype is float32, expected bfloat16 or float16"
    (old,) = told(A100, kv_dtype="float8_e4m3fn")
    assert old == "a cache of float8_e4m3fn needs compute capability 8.9, this GPU has 8.0"
    (odd,) = told(head_dim=96)
    assert odd == "head_dim=96 is no multiple of 64 up to 256"
    (half,) = told(head_dim=64, kv_dtype="float8_e4m3fn")
    assert half == "head_dim=64 is no multiple of 128 up to 256"
    (many,) = told(q_len=5)
    assert many == "20 rows of queries share a head of keys (limit 16)"
    (wide,) = told(head_dim=256)
    assert wide == "4 rows of queries of 256 elements do not fit in registers"
    (large,) = told(batch=2**17, heads=2**14, kv_heads=2**14)
    assert large == "batch=131072 times 16384 heads are more blocks than a grid holds"


def test_strides_that_vectors_do_not_divide_are_refused() -> None:
    cache = torch.empty(1, 1024, 8, 132, dtype=torch.bfloat16)[..., :128]
    dense = torch.empty(1, 1024, 8, 128, dtype=torch.bfloat16)
    q, lengths = torch.empty(1, 1, 32, 128, dtype=torch.bfloat16), torch.tensor([1024], dtype=torch.int32)
    problem = OP.pose(OP.arguments(OP.bind((q, cache, dense, lengths), {})))
    assert list(DECODE.unsupported(problem, H200)) == ["heads of k_cache do not begin at multiples of 16 bytes"]
    apart = torch.empty(1, 1024, 128, 8, dtype=torch.bfloat16).transpose(2, 3)
    problem = OP.pose(OP.arguments(OP.bind((q, dense, apart, lengths), {})))
    assert list(DECODE.unsupported(problem, H200)) == ["the elements of a head of v_cache are not neighbours"]


@EACH
@pytest.mark.parametrize("device", [H200, A100], ids=["sm_90", "sm_80"])
def test_spaces_hold_their_default_and_fit_a_multiprocessor(dims: dict[str, Any], device: Device) -> None:
    if told(device, **dims):
        assert device is A100
        assert dims["kv_dtype"] == "float8_e4m3fn"
        return
    problem = OP.problem_of({**DIMS, "lengths": "full", **dims})
    space = DECODE.space(problem, device)
    assert 1 <= len(space) <= 60
    assert DECODE.default(problem, device) in space
    for config in space:
        launch = DECODE.launch(problem, config, device)
        assert config["resident"] * (launch.shared_bytes + 1024) <= (228 if device is H200 else 164) * 1024
        assert config["resident"] * config["warps"] * 32 <= 2048
        assert launch.grid == (8 * config["cluster"],)
        assert device is H200 or config["cluster"] == 1


def test_one_variant_serves_all_batches_and_lengths() -> None:
    arguments = [drawn(batch=batch, kv_len=kv_len) for batch, kv_len in ((1, 64), (3, 4096))]
    config = {"warps": 8, "ahead": 1, "cluster": 4, "resident": 1}
    keys = set()
    for each in arguments:
        made = Signature(each, OP.output_specs(each, torch.device("cpu")), {})
        (variant,) = DECODE.variants(OP.pose(each), config, H200, made)
        keys.add(variant.key)
    assert len(keys) == 1


def test_a_scale_of_the_callers_own_is_read_at_each_call() -> None:
    config = {"warps": 8, "ahead": 1, "cluster": 1, "resident": 1}

    def of(values: tuple[Any, ...]) -> Launch:
        return DECODE.launch(OP.pose(OP.arguments(values)), config, H200)

    problem = OP.problem_of({**DIMS, "lengths": "full"})
    values = OP.inputs(problem, "normal", torch.Generator().manual_seed(1))
    assert 128**-0.5 in of(values).args
    assert "scale" not in of(values).args
    given = (*values[:7], 0.25, *values[8:])
    assert "scale" in of(given).args


def spilled(dims: dict[str, Any], config: Config) -> int:
    arguments = drawn(**dims)
    made = Signature(arguments, OP.output_specs(arguments, torch.device("cpu")), {})
    (variant,) = DECODE.variants(OP.pose(arguments), config, H200, made)
    return int(DECODE.compile(variant, H200.target).resources["spill_bytes"])


@EACH
@pytest.mark.few(1)
def test_the_default_compiles_without_spilling(dims: dict[str, Any]) -> None:
    assert not spilled(dims, DECODE.default(OP.pose(drawn(**dims)), H200))


@EACH
@pytest.mark.thorough
def test_every_config_compiles_without_spilling(dims: dict[str, Any]) -> None:
    space = DECODE.space(OP.pose(drawn(**dims)), H200)
    assert not [config for config in space if spilled(dims, config)]


def test_it_is_preferred_on_hopper_where_it_was_faster() -> None:
    def preference(device: Device = H200, **dims: Any) -> float:
        return DECODE.preference(OP.problem_of({**DIMS, "lengths": "full", **dims}), device)

    fast: list[dict[str, Any]] = [{}, {"kv_len": 8192, "kv_dtype": "float8_e4m3fn"}, {"kv_len": 8192, "batch": 64}]
    assert min(preference(**dims) for dims in fast) > 2
    slow: list[dict[str, Any]] = [{"kv_len": 8192}, {"kv_len": 8192, "batch": 64, "page": False}]
    assert max(preference(**dims) for dims in slow) < 1
    assert preference(A100) < 1
