"""Tiles of heads and steps of latents: their sizes, what fits on a device, and the usual ones."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from registry import Config, Device, Problem, Space
from registry.backends.estimate import elements_per_thread, fits_shared, next_power_of_2

from ..support import KEPT

_ROWS, _WARPS = (16, 32, 64), (4, 8)


def padded(size: int) -> int:
    """Elements with padding: tensor cores take 16 at least."""
    return max(16, next_power_of_2(size))


class LatentTile(NamedTuple):
    """Sizes of a step: elements of latent and rotated part, padded, heads, bytes of an element, slots of a page."""

    span: int
    rope_span: int
    heads: int
    size: int
    page: int

    @classmethod
    def of(cls, problem: Problem) -> LatentTile:
        """The sizes of a problem's steps."""
        spans = padded(problem.kv_lora_rank), padded(problem.rope_dim)
        most = min(_ROWS[-1], max(_ROWS[0], next_power_of_2(problem.heads)))
        return cls(*spans, most, problem.torch_dtype.itemsize, int(problem.page))

    def rows(self, device: Device) -> tuple[int, ...]:
        """Domain of ROWS: the two largest tiles of heads that fit beside a step."""
        step = {"BLOCK": self.blocks[0], "num_stages": self.stages[0]}
        fitting = [
            count
            for count in _ROWS
            if count <= self.heads and fits_shared(self.shared_bytes({**step, "ROWS": count}, device), device)
        ]
        return tuple(fitting[-2:] or _ROWS[:1])

    @property
    def blocks(self) -> tuple[int, ...]:
        """Domain of BLOCK: 32 to 64 KiB of latents a step, in float32 too."""
        return (16, 32) if self.size == 4 else (32, 64)

    @property
    def stages(self) -> tuple[int, ...]:
        """Domain of num_stages; a look into the table takes a stage of its own."""
        return (2, 3, 5) if self.page else (2, 3, 4)

    def shared_bytes(self, config: Config, device: Device) -> int:
        """Bytes of shared memory: a tile's queries and weights, and the steps that are loaded ahead.

        Hopper's products of 64 rows read a step that no load is writing to.
        """
        width, rows, block = self.span + self.rope_span, config["ROWS"], config["BLOCK"]
        steps = max(1, (config["num_stages"] - 1) // (2 if self.page else 1))
        steps += rows >= 64 and device.capability >= (9, 0)
        return int((rows * (width + block) + steps * block * width) * self.size + 2048)


@lru_cache(maxsize=KEPT)
def walk_space(tile: LatentTile, device: Device) -> Space:
    """Heads of a tile, tokens a step, warps, and steps that are loaded ahead."""
    return _fitting(
        Space(ROWS=tile.rows(device), BLOCK=tile.blocks, num_warps=_WARPS, num_stages=tile.stages), tile, device
    )


@lru_cache(maxsize=KEPT)
def split_space(most: int, tile: LatentTile, device: Device) -> Space:
    """The parameters of ``walk_space``, and the least tokens of a part, up to ``most``."""
    keys = [count for count in (64, 128, 256, 512, 1024, 2048, 4096) if count <= most]
    space = Space(keys=keys, ROWS=tile.rows(device), BLOCK=tile.blocks, num_warps=_WARPS, num_stages=tile.stages)
    return _fitting(space, tile, device)


def _fitting(space: Space, tile: LatentTile, device: Device) -> Space:
    """The configurations whose blocks fit in shared memory, and sums in registers; float32 is multiplied from these."""
    most = 64 if tile.size == 4 else 128

    def registers(config: Config) -> bool:
        return elements_per_thread(config["ROWS"] * tile.span, config["num_warps"], device) <= most

    return space.require(
        "blocks fit in shared memory", lambda config: fits_shared(tile.shared_bytes(config, device), device)
    ).require(f"at most {most} sums a thread", registers)


@lru_cache(maxsize=KEPT)
def usual_walk(tile: LatentTile, device: Device) -> Config:
    return min(walk_space(tile, device).configs, key=lambda config: _unusual(config, tile, device))


@lru_cache(maxsize=KEPT)
def nearest_split(most: int, keys: int, tile: LatentTile, device: Device) -> Config:
    def distance(config: Config) -> tuple[float, ...]:
        return abs(config["keys"] - keys), *_unusual(config, tile, device)

    return min(split_space(most, tile, device).configs, key=distance)


def _unusual(config: Config, tile: LatentTile, device: Device) -> tuple[float, ...]:
    """The distance from all heads in a tile, steps of 32 tokens, 64 sums a thread, and two steps on the way.

    Where Hopper's products of 64 rows are missing, sums of 64 heads spill.
    """
    rows = min(tile.heads, 64 if device.capability >= (9, 0) else 32)
    warps = 8 if config["ROWS"] > _ROWS[0] else 4
    return (
        abs(rows - config["ROWS"]),
        abs(config["BLOCK"] - 32),
        abs(config["num_warps"] - warps),
        abs(config["num_stages"] - 3),
    )
