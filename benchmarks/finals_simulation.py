"""False wins and missed gains of the decision rule, on the noise of real finals with a known truth. No GPU needed.

    python -m benchmarks.finals_simulation [--decisions 960] [--problems 24 4 1] [--seed 0]
        [--write benchmarks/results/h200]

A simulated run is a batch of problems of the durations that were measured, or one problem alone; of runs before
nothing is known. An entrant's times are the incumbent's times a true ratio and noise: rounds are drawn from those of
one block, around the block's median, and each process has a shift. There are two kinds of noise:

- twin: that of an incumbent and its copy, in another problem of that duration. Their true ratio is 1 beyond doubt, so
  the shifts are the block medians themselves, all three of one problem, who is who drawn by lot. Those of a fourth and
  a fifth block are drawn from the three, with a sign by lot: of 348 pairs of processes of one problem 51% agreed in it.
- real: that of a real challenger and its incumbent, whose true ratio nobody knows: the shifts are normal, with the
  standard deviation of its three block medians. (That these three know it badly makes some challengers of the
  simulation steadier and some wilder than any real one is.)

Shifts are made smaller by what the rounds alone explain of their spread.

Then ``blocks_for``, ``observed``, ``fastest`` and ``judge`` of registry.tuner.finals do what they do in a run. A false
win: a challenger that is no better replaces the incumbent. A missed gain: of the challengers one is 2% faster, and it
does not win. More than three challengers meet in a pre-final, of which two go on and the default joins them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from registry.tuner.finals import (
    BLOCKS,
    FINALISTS,
    INCUMBENT_COPY,
    ROUNDS,
    blocks_for,
    fastest,
    judge,
    observed,
)
from registry.tuner.noise import Noise

from .finals_noise import Measured, load

GAIN = 1.02
PROBLEMS = 24
TOGETHER = (PROBLEMS, 4, 1)
ENTERING = (1, 2, 3, 8)
KINDS = ("twin", "real")
_INCUMBENT, _BETTER, _DEFAULT = "incumbent", "better", "default"
_MOST_IN_FINALS = FINALISTS + 1


@dataclass(frozen=True)
class Source:
    """One measured problem, ready to be drawn from: log ratios to the incumbent, of shape (blocks, rounds)."""

    us: float
    twin: np.ndarray
    challengers: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, measured: Measured) -> Source:
        """From times in µs."""
        incumbent = np.array(measured.incumbent)
        challengers = tuple(np.log(np.array(blocks) / incumbent) for blocks in measured.challengers)
        return cls(float(np.median(incumbent)), np.log(np.array(measured.copy) / incumbent), challengers)


class World:
    """Where noise is drawn from: the finals that were measured."""

    def __init__(self, finals: Sequence[Measured], seed: int, rounds: int = ROUNDS) -> None:
        self.draw = np.random.default_rng(seed)
        self.rounds = rounds
        self.sources = [Source.of(one) for one in finals if len(one.incumbent) == BLOCKS and one.challengers]
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
        medians = np.median(measured, axis=1)
        if kind == "twin":
            shifts = self._twin_shifts(medians, blocks)
        else:
            shifts = self.draw.normal(0.0, medians.std(ddof=1), blocks)
        residuals = (measured - medians[:, None])[self.draw.integers(BLOCKS, size=blocks)]
        drawn = np.stack([self.draw.choice(block, self.rounds) for block in residuals])
        shifted: np.ndarray = drawn + shifts[:, None] * self._shares[kind, us]
        return shifted

    def _twin_shifts(self, medians: np.ndarray, blocks: int) -> np.ndarray:
        measured = self.draw.permutation(medians)[:blocks] * self.draw.choice((-1, 1))
        more = max(0, blocks - len(medians))
        further = self.draw.choice(medians, more) * self.draw.choice((-1, 1), more)
        return np.append(measured, further)


def _series(kind: str, source: Source) -> tuple[np.ndarray, ...]:
    return (source.twin,) if kind == "twin" else source.challengers


def _spread(series: np.ndarray) -> tuple[float, float]:
    """The variance of the block medians, and what of it the rounds alone explain (by resampling them)."""
    draw = np.random.default_rng(0)
    explained = [np.var(np.median(draw.choice(block, (200, len(block))), axis=1)) for block in series]
    return float(np.var(np.median(series, axis=1), ddof=1)), float(np.mean(explained))


def _process_share(spreads: Sequence[tuple[float, float]]) -> float:
    """The part of the spread of block medians, as a factor of it, that is left to the processes."""
    total, explained = np.mean(spreads, axis=0)
    return math.sqrt(max(0.0, 1 - float(explained / total)))


Blocks = list[dict[str, list[float]]]


def finals(world: World, us: float, kind: str, truth: Mapping[str, float], count: int) -> tuple[list[str], Blocks]:
    """The challengers (of name -> true ratio to the incumbent) that reach the finals, and the ``count`` blocks they
    meet in."""
    names = list(truth)
    if len(names) > _MOST_IN_FINALS:
        names = fastest({name: _times(us * truth[name], world.ratios(kind, us, 1))[0] for name in names})
        names += [_DEFAULT] if _DEFAULT not in names else []
    times = {
        _INCUMBENT: [[us] * world.rounds] * count,
        INCUMBENT_COPY: _times(us, world.ratios("twin", us, count)),
        **{name: _times(us * truth[name], world.ratios(kind, us, count)) for name in names},
    }
    return names, [{name: blocks[number] for name, blocks in times.items()} for number in range(count)]


def _times(us: float, ratios: np.ndarray) -> list[list[float]]:
    times: list[list[float]] = (us * np.exp(ratios)).tolist()
    return times


@dataclass
class Tally:
    """How often the truth was missed, by the incumbent's duration in µs."""

    durations: list[float]
    wrong: list[bool]

    def rate(self, low: float = 0.0, high: float = math.inf) -> float:
        """The part of the decisions that was wrong, of incumbents of ``low`` to ``high`` µs."""
        chosen = [wrong for us, wrong in zip(self.durations, self.wrong, strict=True) if low <= us < high]
        return sum(chosen) / len(chosen) if chosen else math.nan


def simulate(world: World, kind: str, entering: int, *, gain: bool, runs: int, problems: int = PROBLEMS) -> Tally:
    """Decide ``runs`` batches of ``problems`` problems, with ``entering`` challengers each."""
    tally, count = Tally([], []), blocks_for(problems)
    names = [_BETTER if gain else "one", _DEFAULT, *(f"other {place}" for place in range(entering))][:entering]
    truth = {name: 1 / GAIN if name == _BETTER else 1.0 for name in names}
    for _ in range(runs):
        chosen = world.draw.choice(len(world.sources), problems, replace=problems > len(world.sources))
        durations = [world.sources[place].us for place in chosen]
        held = [finals(world, us, kind, truth, count) for us in durations]
        noise = sum((observed(_INCUMBENT, challengers, blocks) for challengers, blocks in held), Noise())
        for us, (challengers, blocks) in zip(durations, held, strict=True):
            winner = judge(_INCUMBENT, challengers, blocks, noise).winner
            tally.durations.append(us)
            tally.wrong.append(winner != _BETTER if gain else winner != _INCUMBENT)
    return tally


_DECADES = ((0.0, 10.0), (10.0, 100.0), (100.0, math.inf))


def table(world: World, decisions: int, problems: int) -> list[str]:
    """The figures of batches of so many problems, in Markdown."""
    runs = math.ceil(decisions / problems)
    lines = [
        f"{_together(problems)}: {blocks_for(problems)} blocks of {ROUNDS} rounds; "
        f"{runs * problems} decisions a figure",
        "",
        "| noise | entering | false wins | missed 2% gains | below 10 µs | 10 to 100 µs | above |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in KINDS:
        for entering in ENTERING:
            false = simulate(world, kind, entering, gain=False, runs=runs, problems=problems)
            missed = simulate(world, kind, entering, gain=True, runs=runs, problems=problems)
            rates = [false.rate(), missed.rate(), *(missed.rate(low, high) for low, high in _DECADES)]
            lines.append(f"| {kind} | {entering} | " + " | ".join(f"{100 * rate:.1f}%" for rate in rates) + " |")
    return lines


def _together(problems: int) -> str:
    return "One problem alone" if problems == 1 else f"{problems} problems together"


def main() -> None:
    """Print the figures, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=40 * PROBLEMS, help="a figure")
    parser.add_argument("--problems", type=int, nargs="+", default=TOGETHER, help="decided together, a table each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    environment, measured = load()
    lines = [
        f"$ python -m benchmarks.finals_simulation --decisions {options.decisions} "
        f"--problems {' '.join(map(str, options.problems))} --seed {options.seed}",
        "",
        f"Noise of the finals of {len(World(measured, 0).sources)} problems, measured on: {json.dumps(environment)}",
    ]
    for problems in options.problems:
        # every table begins with the same seed, so that each can be made alone
        lines += ["", *table(World(measured, options.seed), options.decisions, problems)]
    print("\n".join(lines))
    if options.write:
        (options.write / "finals_simulation.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
