"""torch.cusparselt without a GPU: its reasons, its space, and the bytes of a prepared weight."""

from __future__ import annotations

import pytest
import torch

import registry
from registry.contracts import BOX
from registry.device import Device
from registry.dispatch.plans.prepared import bytes_to_prepare
from registry.problem import Problem, Value
from registry_torch import cusparselt, cusparselt_private
from registry_torch.cusparselt import CuSparseLt

H200 = Device.without_hardware("sm_90")
SPARSE24 = next(op for op in BOX if op.name == "gemm_sparse24")


@pytest.fixture(autouse=True)
def built_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: True)


def problem_of(**dims: Value) -> Problem:
    return SPARSE24.problem_of({"m": 512, "n": 4096, "k": 4096, "dtype": "bfloat16", "bias": False, **dims})


def test_a_models_problem_has_no_reason() -> None:
    for m in (1, 8, 4096):
        assert not [*CuSparseLt().unsupported(problem_of(m=m), H200)]


@pytest.mark.parametrize(
    ("dims", "architecture", "told"),
    [
        ({"dtype": "float32"}, "sm_90", "rounds float32 to TF32"),
        ({"bias": True}, "sm_90", "with a bias reads a misaligned address"),
        ({"n": 4112}, "sm_90", "must be multiples of 32"),
        ({}, "sm_75", "sparse tensor cores on sm_75"),
        ({}, "gfx942", "sparse tensor cores on gfx942"),
    ],
)
def test_every_reason_is_given(dims: dict[str, Value], architecture: str, told: str) -> None:
    given = CuSparseLt().unsupported(problem_of(**dims), Device.without_hardware(architecture))
    assert [told in one for one in given] == [True]


def test_a_torch_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cusparselt, "is_available", lambda: False)
    assert [*CuSparseLt().unsupported(problem_of(), H200)] == ["this torch was built without cuSPARSELt"]
    monkeypatch.setattr(cusparselt_private, "_multiply", None)
    assert ["has no operators of cuSPARSELt" in one for one in CuSparseLt().unsupported(problem_of(), H200)] == [True]


def test_the_library_divides_k_itself_on_hopper_only() -> None:
    assert {config["split_k"] for config in CuSparseLt().space(problem_of(), H200)} == {1, -1}
    ampere = Device.without_hardware("sm_80")
    assert {config["split_k"] for config in CuSparseLt().space(problem_of(), ampere)} == {1, 2, 4}
    assert CuSparseLt().default(problem_of(), H200) == {"algorithm": 0, "split_k": 1}


@pytest.mark.parametrize(("n", "k", "more"), [(128, 128, 0), (384, 160, 0), (96, 160, 768)])
def test_a_prepared_weight_has_as_many_bytes_as_the_weight_and_its_padding(n: int, k: int, more: int) -> None:
    weight = registry.sparsify24(torch.randn(n, k, dtype=torch.bfloat16))
    assert SPARSE24.flatten is not None
    args, attributes = SPARSE24.flatten(torch.zeros(8, k, dtype=torch.bfloat16), weight)
    problem = problem_of(m=8, n=n, k=k)
    candidate = CuSparseLt(), CuSparseLt().default(problem, H200)
    made = bytes_to_prepare(SPARSE24, candidate, problem, SPARSE24.arguments(args, **attributes))
    assert made == weight.nbytes + more
    assert weight.nbytes == n * k * 9 // 8


@pytest.mark.parametrize("shape", [(64 * 72,), (64, 72)], ids=str)
def test_a_compressed_weight_is_a_matrix_in_every_version_of_torch(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(cusparselt_private, "_compress", lambda weight: weight.new_empty(shape))
    assert cusparselt_private.compressed(torch.zeros(64, 128)).shape == (64, 72)


def test_rows_are_padded_and_a_missing_algorithm_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's part is played by torch's dense product, since it needs a GPU."""
    weight = registry.sparsify24(torch.randn(64, 128, dtype=torch.bfloat16))
    seen: list[tuple[int, ...]] = []

    def dense_product(dense: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, *config: int) -> torch.Tensor:
        if config[0] == 39:
            raise RuntimeError(
                "CUDA error: CUSPARSE_STATUS_INVALID_VALUE when calling `cusparseLtMatmulAlgSetAttribute`"
            )
        seen.append((x.shape[0], *config))
        return torch.nn.functional.linear(x, dense, bias)

    monkeypatch.setattr(cusparselt, "product", dense_product)
    x, bias = torch.randn(2, 5, 128, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    arguments = (x, weight.values, weight.meta, 128, bias, weight.dense())
    run = CuSparseLt().bind(problem_of(), {"algorithm": 3, "split_k": -1}, H200, None)  # type: ignore[arg-type]
    y = run((), arguments, ())
    assert seen == [(16, 3, -1)]
    torch.testing.assert_close(y, torch.nn.functional.linear(x, weight.dense(), bias))
    assert y.is_contiguous()
    run = CuSparseLt().bind(problem_of(), {"algorithm": 39, "split_k": 1}, H200, None)  # type: ignore[arg-type]
    with pytest.raises(registry.UnsupportedError, match="no algorithm 39 with split_k=1 for m=10"):
        run((), arguments, ())
