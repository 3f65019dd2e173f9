"""attention: torch's fused one, and decoding from pages in C++."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from registry import Device, Launch, Problem, implementation_of
from registry.backends import CppKernel

from .cpp import OnThreads


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool, layout: str
) -> torch.Tensor:
    if layout == "bshd":
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
    return (out if layout == "bhsd" else out.transpose(1, 2)).contiguous()


def _sdpa_unsupported(problem: Problem, device: Device) -> list[str]:
    reasons = []
    if problem.causal and problem.q_len != problem.kv_len:
        reasons.append("torch's causal mask begins at the first key, ours ends at the last")
    if problem.causal and problem.mask:
        reasons.append("torch takes a mask or causal, not both")
    return reasons


SDPA = implementation_of(
    "acme::attention",
    "acme.sdpa",
    _sdpa,
    any_size=True,
    device_types={"cpu", "cuda"},
    unsupported=_sdpa_unsupported,
)

DECODE = CppKernel(
    r"""
#include <cmath>
#include <vector>
void decode(float *out, const float *q, const float *k, const float *v, const int32_t *table, const int32_t *lens,
            int64_t batch, int64_t heads, int64_t kv_heads, int64_t blocks, int64_t threads) {
    registry::parallel(threads, [=](int64_t part, int64_t parts) {
        const registry::Span mine = registry::share(batch * heads, part, parts);
        std::vector<float> scores(blocks * PAGE);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
            const int64_t b = i / heads, head = (i % heads) / (heads / kv_heads), length = lens[b];
            const auto at = [=](int64_t t) {
                return ((table[b * blocks + t / PAGE] * int64_t(PAGE) + t % PAGE) * kv_heads + head) * HEAD_DIM;
            };
            float most = -INFINITY, sum = 0, row[HEAD_DIM] = {};
            for (int64_t t = 0; t < length; ++t) {
                float score = 0;
                for (int64_t d = 0; d < HEAD_DIM; ++d) score += q[i * HEAD_DIM + d] * k[at(t) + d];
                scores[t] = score / std::sqrt(float(HEAD_DIM));
                most = scores[t] > most ? scores[t] : most;
            }
            for (int64_t t = 0; t < length; ++t) {
                const float weight = std::exp(scores[t] - most);
                sum += weight;
                for (int64_t d = 0; d < HEAD_DIM; ++d) row[d] += weight * v[at(t) + d];
            }
            for (int64_t d = 0; d < HEAD_DIM; ++d) out[i * HEAD_DIM + d] = row[d] / sum;
        }
    });
}
""",
    "decode",
)


class CppPagedDecode(OnThreads):
    """A thread takes whole heads; the page's size and the head's are compiled in."""

    op, name = "acme::paged_decode", "acme.heads"

    def launch(self, problem: Problem, config: dict[str, int], device: Device) -> Launch:
        """The sizes that change from call to call are arguments: one compiled kernel serves them all."""
        blocks = problem.kv_len // problem.page
        sizes = (problem.batch, problem.heads, problem.kv_heads, blocks, config["threads"])
        return Launch(
            DECODE,
            grid=(),
            args=("out", "q", "k_cache", "v_cache", "block_table", "kv_lens", *sizes),
            constants={"PAGE": problem.page, "HEAD_DIM": problem.head_dim},
        )
