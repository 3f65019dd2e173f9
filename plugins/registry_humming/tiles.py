"""The tiles that are tuned: a space of them for a problem, and each in the library's terms.

mma       the instruction: wgmma of a warpgroup, with a producer warpgroup and TMA; mma of a warp, with cp.async
tokens, columns, depth   rows of a, columns and k's of a block's tile
stages    tiles on the way from memory
blocks    blocks on a multiprocessor
stream_k  whether blocks share a tile's k's, where tiles do not fill the GPU
multicast blocks of a cluster that read the same rows of a once
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from registry import Config, Device, Problem, Space

from .form import HummingForm

_TOKENS = (8, 16, 32, 48, 64, 96, 128, 176)
_WARP_COLUMNS = {"mma": 64, "wgmma": 32}
_WARP_DEPTH = {"mma": 32, "wgmma": 64}
_REGISTERS = 65536
_ROWS_WITH_MULTICAST = 512
_RESERVED_BYTES = 4096
"""Barriers, and what is aligned to 1024 bytes."""


def space(problem: Problem, device: Device) -> Space:
    """Tiles that divide the weight, fit the rows, and fit a multiprocessor."""
    fitting = tuple([tokens for tokens in _TOKENS if _fits_rows(problem.m, tokens)])
    return _space(HummingForm.of(problem), fitting, problem.m >= _ROWS_WITH_MULTICAST, device)


def default(problem: Problem, device: Device) -> Config:
    """mma up to 32 rows, beyond it wgmma with wider tiles the more rows there are.

    Blocks share a tile's k's only where there are enough tiles for all: their parts are added in half precision, and on
    an H200 eight of them, or three of long ones, erred by 1.01 to 1.3 times what the op allows.
    """
    found = space(problem, device)
    few, wide = problem.m <= 32, problem.m > 128
    tokens = min(found.domains["tokens"], key=lambda tokens: _rows(problem.m, tokens))
    columns = 256 if wide else 128
    results = -(-problem.m // tokens) * (problem.n // columns)
    wanted = {
        "mma": "mma" if few else found.domains["mma"][-1],
        "tokens": tokens,
        "columns": columns,
        "depth": 128 if few else 64,
        "stages": 4, "blocks": 1 if wide else 2, "stream_k": results >= device.multiprocessors, "multicast": 1,
    }  # fmt: skip
    return max(found.configs, key=lambda config: sum(config[name] == value for name, value in wanted.items()))


def _rows(m: int, tokens: Any) -> Any:
    """Rows that tiles of so many take, if reading the weight once more takes as long as 24 rows."""
    return -(-m // tokens) * (tokens + 24)


def tuning(config: Config) -> Mapping[str, Any]:
    """A configuration as the library's TuningConfig, as keywords."""
    kind, tokens = config["mma"], config["tokens"]
    pipelined = kind == "wgmma"
    return {
        "mma_type": kind,
        "block_shape": (tokens, config["columns"], config["depth"]),
        "warp_shape": (tokens, _WARP_COLUMNS[kind], _WARP_DEPTH[kind]),
        "num_stages": config["stages"],
        "num_ctas_per_sm": config["blocks"],
        "use_stream_k": config["stream_k"],
        "use_tma": pipelined,
        "use_warp_spec": pipelined,
        "multi_cast_size_a": config["multicast"],
    }


@lru_cache(maxsize=256)
def _space(form: HummingForm, tokens: tuple[int, ...], many_rows: bool, device: Device) -> Space:
    limit = device.shared_bytes or 227 * 1024
    found = Space(
        mma=["mma", "wgmma"] if device.capability == (9, 0) else ["mma"],
        tokens=tokens,
        columns=[128, 256],
        depth=[64, 128],
        stages=[3, 4],
        blocks=[1, 2],
        stream_k=[True, False],
        multicast=[1, 2] if many_rows and device.capability == (9, 0) else [1],
    )
    return (
        found.require("tiles divide the weight", lambda config: _divides(form, config))
        .require("mma has few rows and narrow tiles", _suits_mma)
        .require("a tile of many rows is shallow", lambda config: config["depth"] == 64 or config["tokens"] <= 64)
        .require("two blocks have narrow tiles", lambda config: config["blocks"] == 1 or config["columns"] == 128)
        .require("multicast is wgmma's, of many rows", _suits_multicast)
        .require("accumulators fit in registers", _fits_registers)
        .require("stages fit in shared memory", lambda config: config["blocks"] * _shared(form, config) <= limit)
    )


def _fits_rows(m: int, tokens: int) -> bool:
    """At most twice as many as m, in no more than two tiles where they need not be more."""
    return bool(tokens < 2 * max(m, 8) and tokens >= min(m, 128) / 2)


def _divides(form: HummingForm, config: Config) -> bool:
    return bool(form.n % (config["columns"] * config["multicast"]) == 0 and form.k % config["depth"] == 0)


def _suits_mma(config: Config) -> bool:
    return bool(config["mma"] == "wgmma" or (config["tokens"] <= 64 and config["columns"] == 128))


def _suits_multicast(config: Config) -> bool:
    return bool(config["multicast"] == 1 or (config["mma"] == "wgmma" and config["tokens"] >= 96))


def _threads(config: Config) -> int:
    kind = config["mma"]
    warps = config["columns"] // _WARP_COLUMNS[kind] * (config["depth"] // _WARP_DEPTH[kind])
    return int(32 * warps + (128 if kind == "wgmma" else 0))


def _fits_registers(config: Config) -> bool:
    """A warp's accumulators, and a tile of either operand: what ptxas is left with holds them and a few more."""
    left = min(_REGISTERS // (_threads(config) * config["blocks"]) // 8 * 8, 255)
    if config["mma"] == "wgmma":
        return bool(config["tokens"] // 2 + 32 <= left)
    columns = _WARP_COLUMNS["mma"]
    return bool(config["tokens"] * columns // 32 + (config["tokens"] + columns) // 4 + 8 < left)


def _shared(form: HummingForm, config: Config) -> int:
    tokens, columns, depth = config["tokens"], config["columns"], config["depth"]
    groups = -(-depth // form.group) if form.group else 1
    per_group = 2 * columns * (2 if form.zero_points else 1)
    stage = 2 * tokens * depth + columns * depth * form.bits // 8 + groups * per_group
    parts = depth // _WARP_DEPTH[config["mma"]]
    # sums of the warps along k, and the tile of results, which take the stages' place
    results = max(4 * tokens * columns * (parts - 1), 2 * tokens * columns)
    return int(max(config["stages"] * -(-stage // 1024) * 1024, results)) + _RESERVED_BYTES
