"""What the forms over blocks of tokens and heads share: devices, spaces and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from registry import Config, Device, Problem, Space
from registry.backends.estimate import elements_per_thread

from ..support import DTYPES, KEPT


def type_reasons(problem: Problem, device: Device) -> Iterator[str]:
    """Why the problem's dtype cannot be computed with on the device."""
    if problem.dtype not in DTYPES:
        yield f"dtype {problem.dtype} (supported: {', '.join(DTYPES)})"
    needed = (8, 0) if problem.dtype == "bfloat16" else (7, 5)
    if device.type == "cuda" and (0, 0) < device.capability < needed:
        major, minor = device.capability
        yield f"{problem.dtype} on compute capability {major}.{minor} (needs {needed[0]}.{needed[1]})"


@lru_cache(maxsize=KEPT)
def block_space(span: int, most_heads: int, device: Device) -> Space:
    """Tokens and heads a program, and warps, for heads of ``span`` elements, at most ``most_heads`` of them.

    A thread gets 4 to 32 elements, fewer where one warp has no more.
    """

    def elements(config: Config) -> float:
        block = config["tokens_per_program"] * config["heads_per_program"] * span
        return elements_per_thread(block, config["num_warps"], device)

    return Space(
        tokens_per_program=[1, 2, 4, 8],
        heads_per_program=[count for count in (1, 2, 4, 8, 16, 32) if count <= most_heads],
        num_warps=[1, 2, 4, 8],
    ).require(
        "4 to 32 elements a thread",
        lambda config: elements(config) <= 32 and (elements(config) >= 4 or config["num_warps"] == 1),
    )


@lru_cache(maxsize=KEPT)
def one_token(space: Space, span: int, elements: int, warps: int, device: Device) -> Config:
    """The configuration of one token a program with about as many elements a thread, then about as many warps."""

    def distance(config: Config) -> tuple[float, ...]:
        share = elements_per_thread(config["heads_per_program"] * span, config["num_warps"], device)
        return config["tokens_per_program"], abs(share - elements), abs(config["num_warps"] - warps)

    return min(space.configs, key=distance)
