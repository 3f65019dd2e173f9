"""cuda.cluster of top_k_top_p_sampling: its space, its kernel compiled for GPUs, and the very text of it on a CPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from registry.artifact import Signature
from registry.contracts import TOP_K_TOP_P_SAMPLING as OP
from registry.contracts.sampling.kept_tokens import thresholds
from registry.device import Device
from registry.problem import Arguments
from registry.space import Config
from registry.testing import check_frequencies

from ..tiers import one_of_each
from .sampling_on_cpu import CLUSTER, H200, built, check, check_both_orders, config_of, problem_of, values_of

pytest.importorskip("cuda.core")

A100 = Device("cuda", 0, "NVIDIA A100", "sm_80", 108, 80 << 30, 40 << 20)
NOTHING = Signature(Arguments("", {}), {})


# a misaligned row is read by elements, which the kernel's tests on the CPU do, too
@pytest.mark.parametrize("aligned", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["aligned", "not"])
@pytest.mark.parametrize("device", [A100, H200], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize(("cols", "dtype", "filters"), one_of_each(
    [
        (cols, dtype, filters)
        for cols in (128256, 7, 32000, 50257, 151936, 262144)
        for dtype in ("float32", "bfloat16", "float16")
        for filters in ((True, True), (True, False), (False, True), (False, False))
    ],
))  # fmt: skip
@pytest.mark.few(1)
def test_defaults_compile_and_fit(
    device: Device, cols: int, dtype: str, filters: tuple[bool, bool], aligned: bool
) -> None:
    problem = problem_of(64, cols, dtype, filters)
    if reasons := list(CLUSTER.unsupported(problem, device)):
        assert device is A100
        assert reasons == [f"a row of {cols} does not fit in the shared memory of one block"]
        return
    config = CLUSTER.default(problem, device)
    assert config in CLUSTER.space(problem, device)
    (variant,) = CLUSTER.variants(problem if aligned else problem.misaligned(), config, device, NOTHING)
    found = CLUSTER.compile(variant, device.target).resources
    assert found["spill_bytes"] <= 32


@pytest.mark.thorough
@pytest.mark.parametrize(("cluster", "threads"), [(16, 1024), (4, 1024)])
def test_the_largest_configurations_fit(cluster: int, threads: int) -> None:
    problem = problem_of(64, 128256 * 3 // 2 if cluster == 4 else 800_000)
    config = config_of(cluster, threads, 1024)
    assert config in CLUSTER.space(problem, H200)
    (variant,) = CLUSTER.variants(problem, config, H200, NOTHING)
    assert CLUSTER.compile(variant, H200.target).resources["spill_bytes"] <= 32


def test_a_row_that_fits_has_configurations() -> None:
    for cols in (1, 2, 31, 1000, 4099, 50257, 128256, 151936, 262144, 800_000):
        for dtype in ("float32", "float16"):
            problem = problem_of(3, cols, dtype)
            assert not list(CLUSTER.unsupported(problem, H200))
            assert 1 <= len(CLUSTER.space(problem, H200)) <= 60
            assert cols > 400_000 or CLUSTER.default(problem, H200)["cluster"] <= 8
    (reason,) = CLUSTER.unsupported(problem_of(3, 2**20), H200)
    assert reason == "a row of 1048576 does not fit in the shared memory of 16 blocks"
    assert CLUSTER.default(problem_of(1, 128256), H200)["cluster"] == 8
    assert CLUSTER.default(problem_of(4096, 1000), H200)["cluster"] == 1


def test_every_reason_is_given() -> None:
    assert list(CLUSTER.unsupported(problem_of(3, 99, "float64"), H200)) == [
        "float64 is not one of float32, float16, bfloat16"
    ]


# the kernel's text on the CPU


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return tmp_path_factory.mktemp("cuda_on_cpu")


SIZES: Mapping[tuple[int, int], tuple[Config, ...]] = {
    (9, 1): (config_of(1, 64),),
    (9, 7): (config_of(1, 64),),
    (9, 1000): (config_of(1, 64), config_of(1, 128, 512)),
    (5, 2053): (config_of(2, 64), config_of(2, 128, 1024)),
    (5, 4100): (config_of(4, 64, 512), config_of(1, 128)),
    (130, 1028): (config_of(1, 64),),
}
CASES = [
    (rows, cols, dtype, filters, config)
    for (rows, cols), configs in SIZES.items()
    for config in configs
    for dtype in ("float32", "bfloat16", "float16")
    for filters in ((True, True), (True, False), (False, True), (False, False))
]


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "filters", "config"), one_of_each(CASES, lambda rows, cols, *_: cols > 1028)
)
@pytest.mark.few(1)
def test_the_kernel_is_right_on_every_kind_of_inputs(
    rows: int, cols: int, dtype: str, filters: tuple[bool, bool], config: Config, folder: Path
) -> None:
    problem = problem_of(rows, cols, dtype, filters)
    assert config in CLUSTER.space(problem, H200)
    draw = built(problem, config, folder)
    for kind in OP.kinds:
        check_both_orders(draw, values_of(problem, kind))


LONG = [
    (1, 50257, "bfloat16", config_of(8, 256)),
    (2, 128256, "float32", config_of(16, 128, 512)),
    (1, 128256, "float32", config_of(8, 1024, 512)),
    (3, 128256, "float16", config_of(4, 512)),
    (1, 151936, "float32", config_of(8, 512, 1024)),
    (1, 262144, "bfloat16", config_of(16, 256)),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "cols", "dtype", "config"), LONG)
@pytest.mark.parametrize("filters", [(True, True), (False, True)])
def test_long_rows_are_right(
    rows: int, cols: int, dtype: str, config: Config, filters: tuple[bool, bool], folder: Path
) -> None:
    problem = problem_of(rows, cols, dtype, filters)
    assert config in CLUSTER.space(problem, H200)
    draw = built(problem, config, folder)
    for kind in OP.kinds:
        check(draw(*(values := values_of(problem, kind))), values)


def special_rows(cols: int) -> Iterator[torch.Tensor]:
    """Rows that lead to every step: long lists, bins with more logits than a list has, and ends of a range."""
    generator = torch.Generator().manual_seed(5)
    normal = torch.randn(cols, generator=generator)
    place = torch.arange(cols)
    yield normal * 0.01  # all in one bin
    yield 1000.0 + normal * 1e-3  # few keys, each with many equal logits
    yield torch.where(place % 3 == 0, 1.0, 1.0 + 2.0**-23)  # neighbouring keys
    yield torch.where(place % 2 == 0, -0.0, 0.0)
    yield normal * 3e4  # nearly all without a weight
    yield torch.where(place % 2 == 0, -3e38, 3e38)
    yield -place / cols  # no bin is full, all are kept
    yield torch.where(place == cols - 1, 40.0, normal)
    yield torch.where(place == 0, 20.0, normal * 1e-7 - 2.0)  # a tail of much mass in one bin
    yield normal * 1e-42  # subnormal


@pytest.mark.parametrize(("cluster", "dtype"), one_of_each(
    [(cluster, dtype) for cluster in (4, 1) for dtype in ("float32", "bfloat16", "float16")]
))  # fmt: skip
@pytest.mark.thorough
def test_long_lists_full_bins_and_ties(cluster: int, dtype: str, folder: Path) -> None:
    cols = 4100
    rows = torch.stack(list(special_rows(cols))).clamp(-60000.0, 60000.0 if dtype == "float16" else 3e38)
    if dtype != "float16":
        rows[5] = next(row for place, row in enumerate(special_rows(cols)) if place == 5)
    filters = [(k, p) for k in (7, 300, cols) for p in (0.3, 0.9999, 1.0)]
    logits = rows.repeat_interleave(len(filters), 0).to(getattr(torch, dtype))
    top_k = torch.tensor([k for k, _ in filters] * len(rows), dtype=torch.int32)
    top_p = torch.tensor([p for _, p in filters] * len(rows))
    uniform = torch.rand(len(logits), generator=torch.Generator().manual_seed(9))
    draw = built(problem_of(len(logits), cols, dtype), config_of(cluster, 64 if cluster > 1 else 128, 512), folder)
    check_both_orders(draw, (logits, uniform, top_k, top_p))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_view_that_is_not_aligned_is_read_by_elements(dtype: str, folder: Path) -> None:
    problem = problem_of(4, 4100, dtype)
    logits, *rest = values_of(problem, "normal")
    moved = torch.cat([logits.new_zeros(1), logits.flatten()])[1:].view_as(logits)
    check_both_orders(built(problem.misaligned(), config_of(4, 64), folder), (moved, *rest))


@pytest.mark.thorough
def test_one_filter_for_all_rows_is_read_without_a_step(folder: Path) -> None:
    problem = problem_of(5, 1000)
    logits, uniform, _, _ = values_of(problem, "normal")
    filters = torch.tensor([20], dtype=torch.int32).expand(5), torch.tensor([0.7]).expand(5)
    check_both_orders(built(problem, config_of(1, 64), folder), (logits, uniform, *filters))


@pytest.mark.thorough
@pytest.mark.parametrize("uniform", [1.0, 2.0, -1.0, float("nan")])
def test_numbers_that_none_may_be_draw_some_column(uniform: float, folder: Path) -> None:
    problem = problem_of(4, 1000)
    logits, numbers, _, _ = values_of(problem, "normal")
    filters = torch.tensor([0, -5, 7, 2000], dtype=torch.int32), torch.tensor([0.0, float("nan"), -1.0, 2.0])
    found = built(problem, config_of(1, 64), folder)(logits, numbers.fill_(uniform), *filters)
    assert ((found >= 0) & (found < 1000)).all()


@pytest.mark.thorough
def test_the_frequencies_of_tokens_are_their_probabilities(folder: Path) -> None:
    row, count = torch.randn(1000, generator=torch.Generator().manual_seed(2)) * 3.0, 4096
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(3))
    top_k, top_p = torch.full((count,), 12, dtype=torch.int32), torch.full((count,), 0.8)
    draw = built(problem_of(count, 1000), config_of(1, 64), folder)
    found = draw(row.expand(count, -1).contiguous(), uniform, top_k, top_p)
    least = thresholds(row[None].double(), top_k[:1], top_p[:1].double())
    kept = row.double().masked_fill(row.double() < least[0], -torch.inf).softmax(0)
    some = kept.nonzero()[:, 0]
    assert (kept[found.long()] > 0).all()
    check_frequencies(torch.searchsorted(some, found.long()), kept[some])


@pytest.mark.thorough
def test_a_block_that_leaves_too_early_is_a_fault(folder: Path) -> None:
    problem = problem_of(2, 4100)
    last = "lists are read\n      meet();"
    draw = built(problem, config_of(4, 64), folder, lambda text: text.replace(last, "lists are read"))
    with pytest.raises(AssertionError, match="a block that has left"):
        draw(*values_of(problem, "normal"))
