"""Routing by torch.topk, and expert by expert in C++ on weights that were put side by side."""

from __future__ import annotations

from typing import Any

import torch

from registry import Config, Device, Launch, Problem, implementation_of
from registry.backends import CppKernel

from .cpp import OnThreads


def _sorted(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of equal logits it takes the expert of the lower number, which the reference need not."""
    values, experts = logits.float().sort(dim=-1, descending=True, stable=True)
    return values[:, :top_k].softmax(-1), experts[:, :top_k].to(torch.int32).contiguous()


STABLE_ROUTING = implementation_of(
    "acme::topk_routing", "acme.stable", _sorted, any_size=True, device_types={"cpu", "cuda"}
)

EXPERTS = CppKernel(
    r"""
void moe(float *y, const float *x, const float *weights, const float *shares, const int32_t *experts, int64_t tokens,
         int64_t n, int64_t k, int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(tokens, part, parts);
        for (int64_t t = mine.begin; t < mine.end; ++t)
            for (int64_t j = 0; j < n; ++j) {
                double out = 0;
                for (int64_t s = 0; s < TOP_K; ++s) {
                    const float *row = weights + (experts[t * TOP_K + s] * n + j) * k;
                    double sum = 0;
                    for (int64_t i = 0; i < k; ++i) sum += double(x[t * k + i]) * row[i];
                    out += shares[t * TOP_K + s] * sum;
                }
                y[t * n + j] = out;
            }
    });
}
""",
    "moe",
)


class CppMoe(OnThreads):
    """A thread takes whole tokens."""

    op, name = "acme::moe_linear", "acme.tokens"

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        """One tensor of all experts."""
        return {"stacked": ("weights",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """``[experts, n, k]``."""
        return torch.stack(list(values[0]))

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """One copy for any number of threads."""
        return {}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """top_k is compiled in."""
        args = ("y", "x", "stacked", "shares", "experts", problem.tokens, problem.n, problem.k, config["threads"])
        return Launch(EXPERTS, grid=(), args=args, constants={"TOP_K": problem.top_k})
