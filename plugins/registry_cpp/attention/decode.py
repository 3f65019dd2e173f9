"""attention_decode over sequences and heads of keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from registry.backends.cpp import CppImplementation, CppKernel
from registry.backends.head_strides import outer_strides
from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem
from registry.space import Config, Space

from ..base import ELEMENT_TYPES, thread_counts

ATTENTION_DECODE = CppKernel.read(
    "attention_decode",
    Path(__file__).parents[1] / "kernels" / "simd.hpp",
    Path(__file__).parent / "kernels" / "decode.cpp",
)

_ADDED = {"kv_dtype": ("int8",)}

# shorter pieces take less time than starting a thread
_ELEMENTS_PER_THREAD = 32_768


class CppAttentionDecode(CppImplementation):
    """Keys and values are converted once for all heads and tokens that share them, ``step`` keys at a time."""

    op = "attention_decode"
    name = "cpp.groups"
    added = _ADDED

    def unsupported(self, problem: Problem, device: Device) -> Iterator[str]:
        yield from super().unsupported(problem, device)
        if problem.dtype not in ELEMENT_TYPES:
            yield f"{problem.dtype} is none of {', '.join(ELEMENT_TYPES)}"
        if not problem.traits.contiguous("kv_lens"):
            yield "kv_lens is not contiguous"
        if problem.page and _table_strides(problem) is None:
            yield "the pages of a sequence are not neighbours in block_table"
        for name in ("q", "k_cache", "v_cache"):
            if _strides(problem, name) is None:
                yield f"the elements of a head of {name} are not neighbours"

    def preference(self, problem: Problem, device: Device) -> float:
        # torch's converts and masks all of the cache at each call: several times slower, see decode_step.md
        return 1.0

    def space(self, problem: Problem, device: Device) -> Space:
        """Keys a step, and threads."""
        return _space(device)

    def default(self, problem: Problem, device: Device) -> Config:
        """A thread for each 32768 elements of keys, no more than there are heads of keys in all sequences."""
        groups = problem.batch * problem.kv_heads
        wanted = max(1, min(groups, groups * problem.kv_len * problem.head_dim // _ELEMENTS_PER_THREAD))
        return {"step": 64, "threads": max(count for count in thread_counts(device) if count <= wanted)}

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        """The launch of the kernel; a tensor that is not given is a null pointer."""
        strides = [stride for name in ("q", "k_cache", "v_cache") for stride in _strides(problem, name) or ()]
        table = _table_strides(problem) or (0,)
        tensors = ("out", "lse", "q", "k_cache", "v_cache", "kv_lens", "block_table", "k_scale", "v_scale")
        return Launch(
            ATTENTION_DECODE,
            grid=(1,),
            args=(*tensors, _scale(problem), "softcap", problem.batch, *strides, *table, config["threads"]),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "FLOAT8": problem.kv_dtype == "float8_e4m3fn",
                "INT8": problem.kv_dtype == "int8",
                "KV_HEADS": problem.kv_heads,
                "GROUP": problem.heads // problem.kv_heads,
                "TOKENS": problem.q_len,
                "DIM": problem.head_dim,
                "PAGE": int(problem.page),
                "WINDOW": int(problem.span) - 1,
                "STEP": config["step"],
            },
        )


def _scale(problem: Problem) -> float:
    """The factor of logits: the argument, or its default."""
    arguments = problem.traits.arguments
    given = None if arguments is None or arguments["scale"] is None else arguments.number("scale")
    return float(problem.head_dim**-0.5) if given is None else given


def _strides(problem: Problem, name: str) -> tuple[int, ...] | None:
    if name == "q":
        return outer_strides(problem, name, (problem.q_len, problem.heads, problem.head_dim))
    return outer_strides(problem, name, (problem.page or problem.kv_len, problem.kv_heads, problem.head_dim))


def _table_strides(problem: Problem) -> tuple[int, ...] | None:
    """Elements of the table from a sequence to the next, () without a table; None unless a row's are neighbours."""
    return outer_strides(problem, "block_table", (problem.kv_len // problem.page,)) if problem.page else ()


@lru_cache(maxsize=64)
def _space(device: Device) -> Space:
    return Space(step=[16, 64, 256], threads=thread_counts(device))
