"""Products: a weight prepared in another order, fp8 through a table, and an int4 weight in a packing of our own."""

from __future__ import annotations

from typing import Any

import torch

from registry import Config, Device, Launch, Problem
from registry.backends import CppKernel

from .cpp import OnThreads

COLUMNS = CppKernel(
    r"""
#include <vector>
void columns(float *y, const float *a, const float *across, const float *bias, int64_t m, int64_t n, int64_t k,
             int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(m, part, parts);
        std::vector<double> sum(n);
        for (int64_t row = mine.begin; row < mine.end; ++row) {
            for (int64_t j = 0; j < n; ++j) sum[j] = bias ? bias[j] : 0.0;
            for (int64_t i = 0; i < k; ++i)
                for (int64_t j = 0; j < n; ++j) sum[j] += double(a[row * k + i]) * across[i * n + j];
            for (int64_t j = 0; j < n; ++j) y[row * n + j] = sum[j];
        }
    });
}
""",
    "columns",
)
FP8 = CppKernel(
    r"""
#include <cmath>
// 1 sign, EXPONENT exponent and 7 - EXPONENT mantissa bits; OUT is the output's type
static float number(uint8_t bits) {
    const int mantissa_bits = 7 - EXPONENT, bias = (1 << (EXPONENT - 1)) - 1;
    const int exponent = (bits & 127) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const float size = exponent ? std::ldexp(1.0f + mantissa / float(1 << mantissa_bits), exponent - bias)
                                : std::ldexp(mantissa / float(1 << mantissa_bits), 1 - bias);
    return bits & 128 ? -size : size;
}
void fp8(float *y, const uint8_t *a, const uint8_t *weight, const float *scale_a, const float *scale_b, int64_t m,
         int64_t n, int64_t k, int64_t per_row, int64_t threads) {
    float table[256];
    for (int bits = 0; bits < 256; ++bits) table[bits] = number(bits);
    registry::parallel(threads, [&](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(m, part, parts);
        for (int64_t row = mine.begin; row < mine.end; ++row)
            for (int64_t j = 0; j < n; ++j) {
                double sum = 0;
                for (int64_t i = 0; i < k; ++i) sum += double(table[a[row * k + i]]) * table[weight[j * k + i]];
                y[row * n + j] = sum * scale_a[row * per_row] * scale_b[j * per_row];
            }
    });
}
""",
    "fp8",
)
INT4 = CppKernel(
    r"""
#include <cstring>
static float wide(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static uint16_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
// words [n, k / 8] and groups [n, k / GROUP, 2], scale and zero point: a column of the weight lies in one piece
void int4(uint16_t *y, const uint16_t *a, const uint32_t *words, const float *groups, int64_t m, int64_t n, int64_t k,
          int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(n, part, parts);
        for (int64_t j = mine.begin; j < mine.end; ++j)
            for (int64_t row = 0; row < m; ++row) {
                float sum = 0;
                for (int64_t i = 0; i < k; ++i) {
                    const float *group = groups + 2 * (j * (k / GROUP) + i / GROUP);
                    const float q = words[(j * k + i) / 8] >> 4 * (i % 8) & 15;
                    sum += wide(a[row * k + i]) * (q - group[1]) * group[0];
                }
                y[row * n + j] = rounded(sum);
            }
    });
}
""",
    "int4",
)


class CppGemm(OnThreads):
    """Reads the weight ``[k, n]``: neighbouring outputs from neighbouring numbers."""

    op, name = "acme::gemm", "acme.columns"

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        """``across`` is made of the weight, once."""
        return {"across": ("weight",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The weight, transposed."""
        return values[0].T.contiguous()

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """One copy for any number of threads."""
        return {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """A prepared tensor is an argument by its name."""
        sizes = (problem.m, problem.n, problem.k, config["threads"])
        return Launch(COLUMNS, grid=(), args=("y", "a", "across", "bias", *sizes))


class CppFp8Gemm(OnThreads):
    """Looks numbers up in a table of 256."""

    op, name = "acme::fp8_gemm", "acme.table"
    dtypes = frozenset({"float8_e4m3fn", "float8_e5m2"})

    def unsupported(self, problem: Problem, device: Device) -> Any:
        """Outputs that C++ has no type for."""
        yield from super().unsupported(problem, device)
        if problem.out_dtype != "float32":
            yield f"out_dtype is {problem.out_dtype}; this kernel writes float32"

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """One kernel for both fp8 dtypes."""
        sizes = (problem.m, problem.n, problem.k, int(problem.scales == "row"), config["threads"])
        constants = {"EXPONENT": 4 if problem.dtype == "float8_e4m3fn" else 5}
        return Launch(FP8, grid=(), args=("y", "a", "weight", "scale_a", "scale_b", *sizes), constants=constants)


class CppGemmInt4(OnThreads):
    """The box's gemm_int4 on a packing of our own: ``[n, k / 8]``, scale and zero point side by side."""

    op, name = "gemm_int4", "acme.by_column"
    dtypes = frozenset({"bfloat16"})

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        """Both are made of weights, so that they live as long as these."""
        return {"words": ("qweight",), "groups": ("scales", "zeros")}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """Element k of a column stays at bit ``4 * (k % 8)`` of its word; a symmetric weight has the zero point 8."""
        if name == "words":
            return values[0].T.contiguous()
        scales, zeros = values
        zeros = torch.full_like(scales, 8.0) if zeros is None else zeros
        return torch.stack([scales.T, zeros.T], dim=-1).float()

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """One copy for any number of threads."""
        return {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The group's size is compiled in: the division by it becomes a shift."""
        args = ("y", "a", "words", "groups", problem.m, problem.n, problem.k, config["threads"])
        return Launch(INT4, grid=(), args=args, constants={"GROUP": problem.group_size})
