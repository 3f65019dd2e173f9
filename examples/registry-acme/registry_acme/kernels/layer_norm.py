"""layer_norm in C++ and in Triton, its backward by torch's own, and fused_add_rms_norm in both languages."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from registry import Config, Device, Launch, Problem, Space, implementation_of
from registry.backends import CppKernel, TritonImplementation

from .cpp import OnThreads

ROWS = CppKernel(
    r"""
#include <cmath>
void layer_norm(float *y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                int64_t rows, int64_t cols, double eps, int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        for (int64_t row = mine.begin; row < mine.end; ++row) {
            const float *in = x + row * cols;
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < cols; ++i) sum += in[i];
            const double m = sum / cols;
            for (int64_t i = 0; i < cols; ++i) squares += (in[i] - m) * (in[i] - m);
            const double r = 1 / std::sqrt(squares / cols + eps);
            for (int64_t i = 0; i < cols; ++i)
                y[row * cols + i] = (in[i] - m) * r * weight[i] + (bias ? bias[i] : 0.0f);
            mean[row] = m;
            rstd[row] = r;
        }
    });
}
""",
    "layer_norm",
)
ADD_NORM = CppKernel(
    r"""
#include <cmath>
void add_norm(float *x, float *residual, const float *weight, int64_t rows, int64_t cols, double eps, int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(rows, part, parts);
        for (int64_t row = mine.begin; row < mine.end; ++row) {
            float *one = x + row * cols, *sum = residual + row * cols;
            double squares = 0;
            for (int64_t i = 0; i < cols; ++i) {
                sum[i] += one[i];
                squares += double(sum[i]) * sum[i];
            }
            const float scale = 1 / std::sqrt(squares / cols + eps);
            for (int64_t i = 0; i < cols; ++i) one[i] = sum[i] * scale * weight[i];
        }
    });
}
""",
    "add_norm",
)


class CppLayerNorm(OnThreads):
    """Each row three times, in double precision."""

    op, name = "acme::layer_norm", "acme.rows"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """A bias that is not given is a null pointer."""
        args = ("y", "mean", "rstd", "x", "weight", "bias", problem.rows, problem.cols, "eps", config["threads"])
        return Launch(ROWS, grid=(), args=args)


class CppAddNorm(OnThreads):
    """Each row twice, in place."""

    op, name = "acme::fused_add_rms_norm", "acme.rows"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """What is mutated is an argument like any other."""
        args = ("x", "residual", "weight", problem.rows, problem.cols, "eps", config["threads"])
        return Launch(ADD_NORM, grid=(), args=args)


@triton.jit(do_not_specialize=["eps"])
def layer_norm_kernel(y, mean, rstd, x, weight, bias, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(x + row * cols + columns, mask=inside, other=0.0).to(tl.float32)
    m = tl.sum(values, 0) / cols
    centred = tl.where(inside, values - m, 0.0)
    r = tl.rsqrt(tl.sum(centred * centred, 0) / cols + eps)
    out = centred * r * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * cols + columns, out, mask=inside)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)


@triton.jit(do_not_specialize=["eps"])
def add_norm_kernel(x, residual, weight, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < cols
    places = row * cols + columns
    total = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual + places, total, mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, 0) / cols + eps)
    tl.store(x + places, total * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32), mask=inside)


class _Rows(TritonImplementation):
    """One program a row, which stays in registers."""

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        """Long rows, float64, and layouts that the kernel does not know."""
        if problem.cols > 65_536:
            yield f"a row of {problem.cols} does not fit in registers (limit 65536)"
        if problem.dtype == "float64":
            yield "accumulates in float32"
        if not problem.traits["contiguous"]:
            yield "a tensor is not row-major"

    def space(self, problem: Problem, device: Device) -> Space:
        """Warps a row."""
        return Space(num_warps=[4, 1, 2, 8, 16])


class TritonLayerNorm(_Rows):
    """layer_norm with its statistics."""

    op, name = "acme::layer_norm", "acme.triton"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """One program a row."""
        args = ("y", "mean", "rstd", "x", "weight", "bias", problem.cols, "eps")
        constants = {"BLOCK": triton.next_power_of_2(problem.cols)}
        return Launch(layer_norm_kernel, grid=(problem.rows,), args=args, constants=constants, options=config)


class TritonAddNorm(_Rows):
    """fused_add_rms_norm."""

    op, name = "acme::fused_add_rms_norm", "acme.triton"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """One program a row."""
        constants = {"BLOCK": triton.next_power_of_2(problem.cols)}
        args = ("x", "residual", "weight", problem.cols, "eps")
        return Launch(add_norm_kernel, grid=(problem.rows,), args=args, constants=constants, options=config)


def _aten_backward(
    grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    statistics = mean.unsqueeze(-1), rstd.unsqueeze(-1)
    shape, mask = list(weight.shape), [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(grad_y, x, shape, *statistics, weight, weight, mask)


def _aten_unsupported(problem: Problem, device: Device) -> Iterator[str]:
    if problem.dtype != problem.weight_dtype or problem.dtype not in {"float32", "float64"}:
        yield "torch's takes one dtype for all, statistics included"
    if not problem.traits["contiguous"]:
        yield "torch's on CPUs is wrong where a tensor is not row-major"


ATEN_BACKWARD = implementation_of(
    "acme::layer_norm_backward",
    "acme.aten",
    _aten_backward,
    any_size=True,
    device_types={"cpu", "cuda"},
    unsupported=_aten_unsupported,
)
