"""The generations of FlashAttention: where each is installed, on which GPUs it runs, and what none of them can."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import registry
from registry import Device, Implementation, Problem

DTYPES = ("bfloat16", "float16")

_ELEMENTS = 8
"""A head is loaded 16 bytes at a time."""

Window = tuple[int | None, int | None]
"""Keys that a query sees before and after its own."""


class Generation(NamedTuple):
    """One generation. ``majors`` are the first numbers of the compute capabilities that it is written for."""

    name: str
    library: str
    module: str
    majors: tuple[int, ...]
    unlimited: int | None
    """What its windows have in place of a number where there is no limit."""


FA4 = Generation("fa4", "flash-attn-4", "flash_attn.cute.interface", (8, 9, 10, 11, 12), None)
FA3 = Generation("fa3", "flash-attn-3", "flash_attn_interface", (9,), -1)
FA2 = Generation("fa2", "flash-attn", "flash_attn.flash_attn_interface", (8, 9, 10, 11, 12), -1)

AttentionReasons = Callable[[Problem, Device], Iterator[str]]


def flash_attn(
    op: str,
    generation: Generation,
    function: Callable[..., Any],
    reasons: AttentionReasons,
    *,
    variant: str = "",
    deterministic: bool = True,
) -> Implementation:
    """``function`` as the implementation ``flash_attn.<generation><variant>`` of ``op``."""
    return registry.implementation_of(
        op,
        f"flash_attn.{generation.name}{variant}",
        function,
        library=generation.library,
        any_size=True,
        unsupported=reasons,
        device_types=("cuda",),
        deterministic=deterministic,
        preference=-10.0,  # not before it was measured
    )


def general_reasons(generation: Generation, problem: Problem, device: Device) -> Iterator[str]:
    """Why a generation cannot run attention of any kind."""
    written_for = device.architecture.startswith("sm_") and device.capability[0] in generation.majors
    if device.type == "cuda" and not written_for:
        majors = ", ".join(f"{major}.x" for major in generation.majors)
        yield f"it is written for NVIDIA GPUs of compute capability {majors}, this is {device.architecture}"
    if problem.dtype not in DTYPES:
        yield f"dtype is {problem.dtype}, expected {' or '.join(DTYPES)}"
    yield from _head_reasons(generation, problem, device)
    if not problem.traits["contiguous"] or not problem.traits["aligned"]:
        yield "tensors are not contiguous, or do not begin at a multiple of 16 bytes"


def _head_reasons(generation: Generation, problem: Problem, device: Device) -> Iterator[str]:
    width = problem.head_dim
    if width % _ELEMENTS or width > 256:
        yield f"head_dim is {width}, expected a multiple of {_ELEMENTS} up to 256"
    elif generation is FA4 and device.capability[0] in (10, 11) and 128 < width < 256:
        yield f"head_dim is {width}, on this GPU it takes 256 or at most 128"


def mask_reasons(problem: Problem) -> Iterator[str]:
    """Why no generation can run an ``attention`` or its gradient, in addition."""
    if problem.mask != "none":
        yield f"it has no {problem.mask} mask"


def split_reasons(device: Device) -> Iterator[str]:
    """Why the fourth generation cannot split a query's keys over programs, in addition."""
    if device.capability[0] not in (10, 11):
        yield f"it splits keys on GPUs of compute capability 10.x and 11.x alone, this is {device.architecture}"


def window_of(generation: Generation, window: int, causal: bool) -> Window:
    """An op's ``window`` in the terms of a generation: as many keys after a query's own as before it, if not causal."""
    if window < 0:
        return generation.unlimited, generation.unlimited
    return window, 0 if causal else window


@cache
def library(generation: Generation) -> Any:
    """The module of a generation with its functions."""
    return importlib.import_module(generation.module)
