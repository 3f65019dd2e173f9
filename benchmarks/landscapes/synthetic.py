"""Landscapes from a model of a GPU instead of a GPU: for tests, and to try a search on landscapes it never saw.

The model has what makes tuning hard: waves of tiles, occupancy bounded by registers and shared memory, spills, deep
pipelines that only pay with small tiles, a few percent of ruggedness that no model explains, and candidates that fail.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .format import Landscape, Measured, Point

_SMS = 132
_SHARED = 227 * 1024


def matmul(m: int, n: int, k: int, *, seed: int = 0, ruggedness: float = 0.05) -> Landscape:
    """Like a Triton matrix product: several hundred candidates, a few within 2% of the best."""
    domains: dict[str, tuple[Any, ...]] = {
        "BLOCK_M": (32, 64, 128, 256),
        "BLOCK_N": (32, 64, 128, 256),
        "BLOCK_K": (32, 64, 128),
        "GROUP_M": (1, 4, 8),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4, 5),
    }

    def valid(c: Mapping[str, Any]) -> bool:
        share = c["BLOCK_M"] * c["BLOCK_N"] / (32 * c["num_warps"])
        return bool(8 <= share <= 256 and _tiles_bytes(c) * c["num_stages"] <= _SHARED)

    def time(c: Mapping[str, Any]) -> float | None:
        return _matmul_us(m, n, k, c)

    default = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 4, "num_stages": 3}
    tiled = _measured("synthetic.tiled", domains, default, valid, time, ruggedness, seed)
    best = min(point.median_us for point in tiled.points if point.median_us is not None)
    library = Measured("synthetic.library", {}, (), (Point((), "ok", 1.25 * best),), 0.0)
    dims = {"m": m, "n": n, "k": k}
    return Landscape("synthetic::matmul", dims, ("k", "n"), ("m",), (library, tiled), 0.005)


def rows(rows: int, cols: int, *, seed: int = 0, ruggedness: float = 0.02) -> Landscape:
    """Like softmax: about a hundred candidates of three implementations."""
    warps = (1, 2, 4, 8, 16, 32)

    def waste(programs: float, warps_each: int) -> float:
        per_sm = max(1, min(16, 64 // warps_each))
        waves = programs / (_SMS * per_sm)
        return min(4.0, math.ceil(waves) / waves)

    def whole(c: Mapping[str, Any]) -> float | None:
        share = c["rows_per_program"] * cols / (32 * c["num_warps"])
        if share > 256:
            return None
        spill = 1.0 + max(0.0, share - 64) / 32
        unbalanced = 1.0 + 0.15 * abs(math.log2(share / 16))
        return float(spill * unbalanced * waste(rows / c["rows_per_program"], c["num_warps"]))

    def passes(c: Mapping[str, Any]) -> float | None:
        share = c["BLOCK"] / (32 * c["num_warps"])
        steps = math.ceil(cols / c["BLOCK"])
        hidden = 0.5 if steps < c["num_stages"] else 1.0 / c["num_stages"]
        return (1.3 + 0.2 * hidden + 0.05 * abs(math.log2(share / 16))) * waste(rows, c["num_warps"])

    register = _measured(
        "synthetic.row", {"rows_per_program": (1, 2, 4, 8), "num_warps": warps},
        {"rows_per_program": 1, "num_warps": 4}, lambda _: True, whole, ruggedness, seed,
    )  # fmt: skip
    online = _measured(
        "synthetic.online", {"BLOCK": (1024, 2048, 4096, 8192), "num_warps": warps[2:], "num_stages": (1, 2, 3, 4)},
        {"BLOCK": 2048, "num_warps": 8, "num_stages": 1}, lambda c: bool(c["BLOCK"] >= 128 * c["num_warps"] // 4),
        passes, ruggedness, seed,
    )  # fmt: skip
    library = Measured("synthetic.library", {}, (), (Point((), "ok", 2.5),), 0.0)
    dims = {"rows": rows, "cols": cols}
    return Landscape("synthetic::rows", dims, ("cols",), ("rows",), (library, register, online), 0.005)


def _matmul_us(m: int, n: int, k: int, c: Mapping[str, Any]) -> float | None:
    registers = c["BLOCK_M"] * c["BLOCK_N"] / (32 * c["num_warps"]) + 40 + 8 * c["num_stages"]
    if registers > 300:
        return None
    occupancy = min(
        _SHARED // (_tiles_bytes(c) * c["num_stages"]),
        64 // c["num_warps"],
        int(2048 // (min(registers, 255) * c["num_warps"])),
    )
    occupancy = max(1, occupancy)
    tiles = math.ceil(m / c["BLOCK_M"]) * math.ceil(n / c["BLOCK_N"])
    waves = math.ceil(tiles / (_SMS * occupancy))
    in_flight = occupancy * c["num_stages"] * c["BLOCK_K"]
    pipelined = 1.0 - math.exp(-in_flight / 160)
    tensor_cores = {2: 0.55, 4: 0.95, 8: 1.0 if c["BLOCK_M"] * c["BLOCK_N"] >= 128 * 128 else 0.75}[c["num_warps"]]
    intensity = c["BLOCK_M"] * c["BLOCK_N"] / (c["BLOCK_M"] + c["BLOCK_N"])
    fed = intensity / (intensity + 24) * {1: 0.9, 4: 0.97, 8: 1.0}[c["GROUP_M"]]
    spilled = 1.0 + max(0.0, registers - 240) / 60
    busy = min(1.0, tiles / _SMS)
    work = waves * occupancy * c["BLOCK_M"] * c["BLOCK_N"] * k * max(busy, 0.2)
    return float(3.0 + 2 * work / (5.6e6 * pipelined * tensor_cores * fed) * spilled)


def _tiles_bytes(c: Mapping[str, Any]) -> int:
    return int((c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"] * 2)


def _measured(
    name: str,
    domains: Mapping[str, Sequence[Any]],
    default: Mapping[str, Any],
    valid: Callable[[Mapping[str, Any]], bool],
    time: Callable[[Mapping[str, Any]], float | None],
    ruggedness: float,
    seed: int,
) -> Measured:
    points = []
    for number, places in enumerate(itertools.product(*(range(len(values)) for values in domains.values()))):
        config = {key: domains[key][place] for key, place in zip(domains, places, strict=True)}
        if not valid(config):
            continue
        us = time(config)
        # the ruggedness belongs to the variant and stays the same from problem to problem, but for a fifth of it
        own, common = random.Random(f"{name} {places} {seed}"), random.Random(f"{name} {places}")
        factor = math.exp(ruggedness * (0.8 * common.gauss(0, 1) + 0.2 * own.gauss(0, 1)))
        status, median = ("out_of_resources", None) if us is None else ("ok", us * factor)
        points.append(Point(places, status, median, False, (number,)))
    start = tuple(list(domains[key]).index(default[key]) for key in domains)
    return Measured(name, {key: tuple(values) for key, values in domains.items()}, start, tuple(points), 1.0)
