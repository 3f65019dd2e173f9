"""The noise that simulated finals draw from: that of real ones, measured by a run. docs/tuning.md has the results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.tuner.decide.judge import BLOCKS, FINALISTS, INCUMBENT_COPY, ROUNDS, fastest

from .finals_noise import Measured

KINDS = ("twin", "real")
INCUMBENT, BETTER, DEFAULT = "incumbent", "better", "default"
MOST_IN_FINALS = FINALISTS + 1


@dataclass(frozen=True)
class Source:
    """One measured problem, ready to be drawn from: log ratios to the incumbent, of shape (3 blocks, rounds)."""

    us: float
    twin: np.ndarray
    challengers: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, measured: Measured) -> Source:
        """The source that measured times in µs make."""
        incumbent = np.array(measured.incumbent[:BLOCKS])
        challengers = tuple(np.log(np.array(blocks[:BLOCKS]) / incumbent) for blocks in measured.challengers)
        return cls(float(np.median(incumbent)), np.log(np.array(measured.copy[:BLOCKS]) / incumbent), challengers)


class World:
    """The finals that were measured, from which noise is drawn."""

    def __init__(self, finals: Sequence[Measured], seed: int, rounds: int = ROUNDS) -> None:
        self.draw = np.random.default_rng(seed)
        self.rounds = rounds
        self.sources = [Source.of(one) for one in finals if len(one.incumbent) >= BLOCKS and one.challengers]
        self._near = {
            one.us: [other for other in self.sources if abs(math.log10(one.us / other.us)) <= 0.5]
            for one in self.sources
        }
        spreads = {
            (kind, one.us): [_spread(series) for series in _series(kind, one)] for one in self.sources for kind in KINDS
        }
        self._shares = {
            (kind, us): _process_share([spread for one in near for spread in spreads[kind, one.us]])
            for us, near in self._near.items()
            for kind in KINDS
        }

    def ratios(self, kind: str, us: float, blocks: int = BLOCKS) -> np.ndarray:
        """Log ratios to an incumbent of that duration of a challenger as fast as it, shape (blocks, rounds)."""
        near = self._near[us]
        other = near[self.draw.integers(len(near))]
        series = _series(kind, other)
        measured = series[self.draw.integers(len(series))]
        medians = _medians(measured)
        if kind == "twin":
            shifts = self._twin_shifts(medians, blocks)
        else:
            shifts = self.draw.normal(0.0, medians.std(ddof=1), blocks)
        residuals = (measured - medians[:, None])[self.draw.integers(BLOCKS, size=blocks)]
        drawn = np.stack([self.draw.choice(block, self.rounds) for block in residuals])
        shifted: np.ndarray = drawn + shifts[:, None] * self._shares[kind, us]
        return shifted

    def residuals(self, us: float) -> np.ndarray:
        """Log ratios of one block of a challenger of an incumbent of that duration, around their median."""
        near = self._near[us]
        other = near[self.draw.integers(len(near))]
        block = other.challengers[self.draw.integers(len(other.challengers))][self.draw.integers(BLOCKS)]
        drawn = self.draw.choice(block, self.rounds)
        around: np.ndarray = drawn - np.median(block)
        return around

    def _twin_shifts(self, medians: np.ndarray, blocks: int) -> np.ndarray:
        measured = self.draw.permutation(medians)[:blocks] * self.draw.choice((-1, 1))
        more = max(0, blocks - len(medians))
        further = self.draw.choice(medians, more) * self.draw.choice((-1, 1), more)
        return np.append(measured, further)


def _series(kind: str, source: Source) -> tuple[np.ndarray, ...]:
    return (source.twin,) if kind == "twin" else source.challengers


def _medians(values: np.ndarray) -> np.ndarray:
    """The median of each row; for short rows sorting takes a fifth of the time of ``np.median``."""
    ordered, middle = np.sort(values, axis=1), values.shape[1] - 1
    found: np.ndarray = (ordered[:, middle // 2] + ordered[:, (middle + 1) // 2]) / 2
    return found


def _spread(series: np.ndarray) -> tuple[float, float]:
    """The variance of the block medians, and what of it the rounds alone explain (by resampling them)."""
    draw = np.random.default_rng(0)
    explained = [np.var(_medians(draw.choice(block, (200, len(block))))) for block in series]
    return float(np.var(_medians(series), ddof=1)), float(np.mean(explained))


def _process_share(spreads: Sequence[tuple[float, float]]) -> float:
    """The part of the spread of block medians, as a factor of it, that is left to the processes."""
    total, explained = np.mean(spreads, axis=0)
    return math.sqrt(max(0.0, 1 - float(explained / total)))


Blocks = list[dict[str, list[float]]]


def finals(world: World, us: float, kind: str, truth: Mapping[str, float], count: int) -> tuple[list[str], Blocks]:
    """The challengers (of name -> true ratio to the incumbent) that reach the finals, and the ``count`` blocks they
    meet in."""
    names = list(truth)
    if len(names) > MOST_IN_FINALS:
        names = fastest({name: _times(us * truth[name], world.ratios(kind, us, 1))[0] for name in names})
        names += [DEFAULT] if DEFAULT not in names else []
    times = {
        INCUMBENT: [[us] * world.rounds] * count,
        INCUMBENT_COPY: _times(us, world.ratios("twin", us, count)),
        **{name: _times(us * truth[name], world.ratios(kind, us, count)) for name in names},
    }
    return names, [{name: blocks[number] for name, blocks in times.items()} for number in range(count)]


def _times(us: float, ratios: np.ndarray) -> list[list[float]]:
    times: list[list[float]] = (us * np.exp(ratios)).tolist()
    return times
