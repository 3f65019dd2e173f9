"""attention_decode: attention of each sequence's last tokens to its keys and values in a cache, in rows or in pages.

The cache is vLLM's, as ``kv_cache_append`` writes it. It has no gradient. Lengths and the table of pages are on the
device and are not read by the host: with a length beyond the room of its sequence, or a page that the cache lacks,
memory beside it is read. ``KERNEL_REGISTRY_CHECK=1`` finds such a call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ...contract import Floor, Op, RowMajor, Tolerance
from ...problem import Problem, Value, dtype_name
from ..checks import FLOATS
from ..rounding import FLOAT32_UNIT, fp32_weight, underflow, unit_roundoff, units
from .decode_checks import KV_DTYPES, check_decode, check_decode_data, decode_problem
from .decode_inputs import FLOAT8, KINDS, decode_inputs
from .decode_lengths import LENGTHS, keys_read, pairs_seen
from .logits import rounded_weights


def attention_decode_reference(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    window: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``out`` [batch, q_len, heads, head_dim], ``softmax(logits) @ v``, and ``lse`` [batch, heads, q_len].

    q is ``[batch, q_len, heads, head_dim]``; the caches are ``[batch, kv_len, kv_heads, head_dim]``, or with a
    block_table ``[blocks, page, kv_heads, head_dim]``: key ``j`` of sequence ``b`` is in slot ``j % page`` of block
    ``block_table[b, j // page]``. kv_lens ``[batch]`` and block_table ``[batch, max_blocks]`` are int32. Heads of q in
    groups of ``heads / kv_heads`` share a head of the cache. Caches are in the dtype of q, or float8_e4m3fn, and then
    times k_scale or v_scale, float32 of one element.

    The q_len tokens are the last of the kv_lens[b] of their sequence: token ``i`` is at ``p = kv_lens[b] - q_len + i``
    and sees keys 0 to ``p``, with a ``window`` of at least 0 only ``p - window`` to ``p``. Logits are
    ``scale * (q @ k)``, by default ``head_dim ** -0.5``; with a softcap above 0 ``softcap * tanh(logits / softcap)``.

    lse is the natural logarithm of the sum of exponentials of a row's logits, float32, of float64 q float64. A token
    that sees no key, such as all of an empty sequence, has the output 0 and the lse -inf. Nothing behind a sequence's
    length matters, whatever is there. Halves are computed in fp32 and rounded once.
    """
    rows = _weighed(q, k_cache, v_cache, kv_lens, block_table, k_scale, v_scale, scale, softcap, window)
    out = (rows.weights @ rows.values).permute(0, 3, 1, 2, 4).flatten(2, 3)
    return out.to(q.dtype).contiguous(), rows.lse.flatten(1, 2)


class _Weighed(NamedTuple):
    """Weights [batch, kv_heads, group, q_len, kv_len] of the values [batch, kv_heads, 1, kv_len, head_dim].

    ``seen`` tells where a token sees a key; ``lse`` has the weights' shape without the last dimension. Values of keys
    that no token sees are 0.
    """

    weights: torch.Tensor
    values: torch.Tensor
    seen: torch.Tensor
    lse: torch.Tensor


def _weighed(  # noqa: PLR0913, PLR0917 - the schema's arguments in order
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    kv_lens: torch.Tensor,
    block_table: torch.Tensor | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    scale: float | None,
    softcap: float,
    window: int,
) -> _Weighed:
    """Weights and values of a call, in float32, of float64 in float64."""
    wide = torch.promote_types(q.dtype, torch.float32)
    keys, values = (
        gathered(cache, kv_lens, block_table).to(wide) * (1.0 if by is None else by.to(wide))
        for cache, by in ((k_cache, k_scale), (v_cache, v_scale))
    )
    seen = seen_keys(kv_lens, q.shape[1], keys.shape[1], window)
    group = q.shape[2] // keys.shape[2]
    # [batch, kv_heads, group, q_len, head_dim] and [batch, kv_heads, 1, kv_len, head_dim]
    queries = q.to(wide).unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4)
    keys, values = (each.transpose(1, 2).unsqueeze(2) for each in (keys, values))
    logits = queries @ keys.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0.0:
        logits = softcap * torch.tanh(logits / softcap)
    seen = seen[:, None, None]
    logits = logits.masked_fill(~seen, -math.inf)
    lse = logits.logsumexp(-1)
    weights = (logits - lse.unsqueeze(-1)).exp().masked_fill(~seen, 0.0)
    return _Weighed(weights, values.masked_fill(~seen.any(-2).unsqueeze(-1), 0.0), seen, lse)


def gathered(cache: torch.Tensor, kv_lens: torch.Tensor, block_table: torch.Tensor | None) -> torch.Tensor:
    """Keys or values ``[batch, kv_len, kv_heads, head_dim]``: the cache, or each sequence's pages one after another.

    For pages that a sequence has not begun, the table is not read: page 0 takes their place.
    """
    if block_table is None:
        return cache
    page = cache.shape[1]
    begun = torch.arange(block_table.shape[1], device=cache.device) * page < kv_lens[:, None]
    places = torch.where(begun, block_table, 0).long()
    if cache.dtype.itemsize == 1:
        return cache.view(torch.uint8)[places].flatten(1, 2).view(cache.dtype)
    return cache[places].flatten(1, 2)


def seen_keys(kv_lens: torch.Tensor, q_len: int, kv_len: int, window: int) -> torch.Tensor:
    """Whether each token sees a key, bool ``[batch, q_len, kv_len]``."""
    key = torch.arange(kv_len, device=kv_lens.device)
    place = (kv_lens[:, None] - q_len + torch.arange(q_len, device=kv_lens.device))[:, :, None]
    seen = key <= place
    return seen if window < 0 else seen & (key >= place - window)


def _outputs(q: Any, *_: Any) -> list[Any]:
    batch, q_len, heads, _ = q.shape
    return [(q.shape, q.dtype), ((batch, heads, q_len), torch.promote_types(q.dtype, torch.float32))]


def _floor(problem: Problem) -> Floor:
    size = problem.torch_dtype.itemsize
    cell = 1 if problem.kv_dtype == FLOAT8 else size
    keys, rows = keys_read(problem), problem.batch * problem.q_len * problem.heads
    pages = -(-keys // problem.page) if problem.page else 0
    moved = 2 * keys * problem.kv_heads * problem.head_dim * cell
    moved += rows * (2 * problem.head_dim * size + max(4, size)) + 4 * (problem.batch + pages)
    return Floor(bytes=moved, flop=4 * pairs_seen(problem) * problem.heads * problem.head_dim)


def _logit_errors(problem: Problem, values: Mapping[str, Any]) -> torch.Tensor:
    """Roundings of fp32 in each row's logits ``[batch, heads, q_len]``: an absolute error in units of 2**-24.

    A product of two vectors errs by about ``sqrt(head_dim) / 2`` roundings of the sum of magnitudes, its scaling by
    three; a cap adds those of a hyperbolic tangent near 1.
    """
    given = values["scale"]
    scale = problem.head_dim**-0.5 if given is None else abs(given)
    largest = _sums_of_magnitudes(values).nan_to_num(0.0, 0.0, 0.0) * scale
    errors: torch.Tensor = largest * (3.0 + math.sqrt(problem.head_dim) / 2) + 8.0 * values["softcap"]
    return errors


def _sums_of_magnitudes(values: Mapping[str, Any]) -> torch.Tensor:
    """The largest ``abs(q) @ abs(k)`` of the keys that each row sees, float64 ``[batch, heads, q_len]``."""
    q, lengths = values["q"].double().abs(), values["kv_lens"]
    keys = gathered(values["k_cache"], lengths, values["block_table"]).double().abs()
    if values["k_scale"] is not None:
        keys = keys * values["k_scale"].double().abs()
    seen = seen_keys(lengths, q.shape[1], keys.shape[1], values["window"])[:, None, None]
    queries = q.unflatten(2, (keys.shape[2], -1)).permute(0, 2, 3, 1, 4)
    sums = queries @ keys.permute(0, 2, 3, 1).unsqueeze(2)
    largest: torch.Tensor = sums.masked_fill(~seen, 0.0).amax(-1).flatten(1, 2)
    return largest


def _out_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to each output, and to the weighted mean of the magnitudes of the values.

    Weights of halves are rounded before their product with the values, below the normal numbers by as much as there;
    each errs by as much as its logit, which also cancels in part in the quotient by their sum. In fp32 also the
    roundings of the sum.
    """
    wide = {**values, "q": values["q"].double(), "k_cache": values["k_cache"].double()}
    wide["v_cache"] = values["v_cache"].double().abs()
    rows = _weighed(**wide)
    roundings = 16.0 + math.sqrt(problem.kv_len) + 2.0 * _logit_errors(problem, values).transpose(1, 2)[..., None]
    scale = reference.abs() + _mean(rows.weights, rows) * (fp32_weight(problem) * roundings)
    if problem.torch_dtype.itemsize > 2:
        return scale
    # float8 is exact in float16, whose products are fast
    dtype = torch.float16 if problem.kv_dtype == FLOAT8 else problem.torch_dtype
    return scale + _mean(rounded_weights(rows.weights, ~rows.seen, dtype), rows)


def _mean(weights: torch.Tensor, rows: _Weighed) -> torch.Tensor:
    """Sums of the values by weights, [batch, q_len, heads, head_dim], 0 for NaN and infinity."""
    return (weights @ rows.values).permute(0, 3, 1, 2, 4).flatten(2, 3).nan_to_num_(0.0, 0.0, 0.0)


def _lse_scale(problem: Problem, reference: torch.Tensor, values: Mapping[str, Any]) -> torch.Tensor:
    """Relative to the output, and absolute: the relative error of a sum is the absolute one of its logarithm."""
    return reference.abs() + 16.0 + math.sqrt(problem.kv_len) + _logit_errors(problem, values)


def _examples() -> tuple[Mapping[str, Value], ...]:
    """Small problems, most of them odd, and one in float64."""
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "page", "span", "softcap", "lengths")
    shapes = (
        (2, 4, 2, 1, 72, 16, False, False, False, "full"),
        (3, 6, 2, 3, 160, 20, 16, False, True, "uniform"),
        (5, 3, 3, 1, 96, 32, 4, 41, False, "skewed"),
        (1, 8, 1, 2, 131, 64, False, 1, False, "full"),
    )
    every = [*itertools.product(FLOATS, KV_DTYPES, shapes), (torch.float64, "auto", shapes[1])]
    return tuple(
        {**dict(zip(names, each, strict=True)), "kv_dtype": kind, "dtype": dtype_name(dtype)}
        for dtype, kind, each in every
    )


ATTENTION_DECODE = Op(
    name="attention_decode",
    schema=(
        "attention_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor kv_lens, Tensor? block_table=None,"
        " Tensor? k_scale=None, Tensor? v_scale=None, float? scale=None, float softcap=0.0, int window=-1)"
        " -> (Tensor out, Tensor lse)"
    ),
    version=1,
    reference=attention_decode_reference,
    fake=RowMajor(_outputs),
    problem=decode_problem,
    inputs=decode_inputs,
    floor=_floor,
    tolerance=Tolerance(units(float32=2.0, half=1.1), underflow(4), _out_scale),
    tolerances={
        "lse": Tolerance(
            {"float32": 2 * FLOAT32_UNIT, "float64": 2 * unit_roundoff(torch.float64)}, underflow(), _lse_scale
        )
    },
    static=frozenset({"heads", "kv_heads", "q_len", "head_dim", "page", "span", "dtype"}),
    dynamic=frozenset({"batch", "kv_len"}),
    choices={"kv_dtype": KV_DTYPES, "softcap": (False, True)},
    distributions={"lengths": LENGTHS},
    kinds=KINDS,
    examples=_examples(),
    check=check_decode,
    check_data=check_decode_data,
)
