"""Products with 2:4 sparse weights: each kept element selects its activation in a register, of four."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from registry.device import Device
from registry.implementation import Launch
from registry.problem import Problem, TensorSpec
from registry.space import Config, Space

from ..base import ELEMENT_TYPES, DenseImplementation, panel_kernel, thread_counts
from ..panels import PANEL

GEMM_SPARSE24 = panel_kernel("gemm_sparse24", str(Path(__file__).parent / "kernels" / "gemm_sparse24.cpp"))

FOURS = 8
"""Fours of K whose places stand in a word."""
DEPTHS = (4, 16, 64)
"""Words of K that all rows pass before the next ones."""
TILES = (1, 2, 4, 8)
"""Rows that share what was read of the weight."""
PANELS = (1, 2, 4)
"""Panels of 16 columns whose sums a thread holds at once."""
MOST_SUMS = 8
"""The most rows times panels: each has two sums in registers."""
FEW_ROWS = 64
"""Rows up to which an untuned call runs this: the dense weight that torch's product needs takes longer to make."""


class CppGemmSparse24(DenseImplementation):
    """Half of the dense weight's products, ``m_tile`` rows and ``panels`` times 16 columns at a time."""

    op, name = "gemm_sparse24", "cpp.gemm"

    def prepared(self, problem: Problem, config: Config) -> Mapping[str, tuple[str, ...]]:
        return {"panels": ("values",), "codes": ("meta",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        """The values or the places in panels of 16 columns, with zeros after N and K: as many bytes as the weight."""
        return value_panels(values[0]) if name == "panels" else code_panels(values[0])

    def prepared_config(self, problem: Problem, config: Config) -> Config:
        """No parameters: every config reads the same panels."""
        return {}

    def space(self, problem: Problem, device: Device) -> Space:
        return _space(min(problem.m, TILES[-1]), device)

    def default(self, problem: Problem, device: Device) -> Config:
        m_tile = max(tile for tile in TILES if tile <= max(problem.m, 1))
        return {
            "m_tile": m_tile,
            "panels": min(PANELS[-1], MOST_SUMS // m_tile),
            "depth": DEPTHS[1],
            "threads": max(thread_counts(device)),
        }

    def preference(self, problem: Problem, device: Device) -> float:
        return 2.0 if problem.m <= FEW_ROWS else -1.0

    def scratch(self, problem: Problem, config: Config, device: Device) -> Mapping[str, TensorSpec]:
        tile = config["m_tile"]
        rows = -(-problem.m // tile) * tile
        totals = (config["threads"], rows, config["panels"] * PANEL)
        return {
            "wide": TensorSpec.contiguous((rows, -(-problem.k // (4 * FOURS)) * 4 * FOURS), torch.float32),
            "totals": TensorSpec.contiguous(totals, torch.float32),
        }

    def launch(self, problem: Problem, config: Config, device: Device) -> Launch:
        sizes = (problem.m, problem.n, problem.k, config["depth"], config["threads"])
        return Launch(
            GEMM_SPARSE24,
            grid=(1,),
            args=("y", "x", "panels", "codes", "bias", "wide", "totals", *sizes),
            constants={
                "ELEMENT": ELEMENT_TYPES[problem.dtype],
                "M_TILE": config["m_tile"],
                "VECTORS": config["panels"],
            },
        )


def value_panels(values: torch.Tensor) -> torch.Tensor:
    """The kept values ``[n, k / 2]`` as ``[panels, fours, 2, 16]``, of bfloat16 ``[panels, fours, 16, 2]``.

    Zeros fill the last panel, and the fours up to a multiple of 8.
    """
    n, half = values.shape
    whole = torch.nn.functional.pad(values, (0, -half % (2 * FOURS), 0, -n % PANEL))
    pairs = whole.view(whole.shape[0] // PANEL, PANEL, -1, 2)
    order = (0, 2, 1, 3) if values.dtype == torch.bfloat16 else (0, 2, 3, 1)
    return pairs.permute(order).contiguous()


def code_panels(meta: torch.Tensor) -> torch.Tensor:
    """The places ``[n, words]`` as int32 ``[panels, words, 16]``: lower places in a low half, higher in a high half.

    The places of four ``i`` of a word are at bits ``2 * i`` of the halves.
    """
    words = torch.zeros_like(meta)
    for four in range(FOURS):
        code = meta >> 4 * four
        words |= (code & 3) << 2 * four | (code >> 2 & 3) << 16 + 2 * four
    whole = torch.nn.functional.pad(words, (0, 0, 0, -meta.shape[0] % PANEL))
    return whole.view(-1, PANEL, meta.shape[1]).transpose(1, 2).contiguous()


@lru_cache(maxsize=16)
def _space(m: int, device: Device) -> Space:
    """The space for ``m`` rows, at most 8; more have the space of 8."""
    return (
        Space(m_tile=TILES, panels=PANELS, depth=DEPTHS, threads=thread_counts(device))
        .require("no tile twice as high as m", lambda config: config["m_tile"] < 2 * m)
        .require("sums in registers", lambda config: config["m_tile"] * config["panels"] <= MOST_SUMS)
    )
