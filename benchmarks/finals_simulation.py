"""False wins and missed gains of the decision rule, on the noise of real finals with a known truth. No GPU needed.

    python -m benchmarks.finals_simulation [--decisions 960] [--noisy 2400] [--problems 24 12 1] [--seed 0]
        [--write benchmarks/results/h200]

A simulated run is a batch of problems of the durations that were measured, or one problem alone; of runs before nothing
is known, or only finals of other durations. An entrant's times are the incumbent's times a true ratio and noise: rounds
are drawn from those of one block, around the block's median, and each process has a shift. There are two kinds of
noise:

- twin: that of an incumbent and its copy, in another problem of that duration. Their true ratio is 1 beyond doubt, so
the shifts are the block medians themselves, all three of one problem, who is who drawn by lot. Those of a fourth and
a fifth block are drawn from the three, with a sign by lot: of 348 pairs of processes of one problem 51% agreed in it.
- real: that of a real challenger and its incumbent, whose true ratio nobody knows: the shifts are normal, with the
standard deviation of its three block medians. (That these three know it badly makes some challengers of the
simulation steadier and some wilder than any real one is.)

Shifts are made smaller by what the rounds alone explain of their spread.

Then ``blocks_of_each``, ``observed``, ``fastest`` and ``judge`` of registry.tuner.decide.judge do what they do in a
run. A false win: a challenger that is no better replaces the incumbent. A missed gain: of the challengers one is 2%
faster, and it does not win. More than three challengers meet in a pre-final, of which two go on and the default joins
them. The table by blocks has the stated number of blocks, whatever a run would hold.

The last table is of problems that are noisier than their batch (``finals_noisy``): how often a challenger that is no
better wins, how often the interval of its ratio to the incumbent holds the true one, and how often the interval for a
new measurement holds what another process and method then find.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from registry.tuner.decide.judge import (
    BLOCKS,
    MOST_BLOCKS,
    ROUNDS,
    USUAL_IS_KNOWN,
    blocks_of_each,
    judge,
    observed,
)
from registry.tuner.decide.noise import Noise

from .arguments import output_folder
from .finals_noise import Measured, load
from .finals_noisy import table_by_shift
from .finals_world import BETTER, DEFAULT, INCUMBENT, KINDS, MOST_IN_FINALS, World, finals

GAIN = 1.02
PROBLEMS = 24
TOGETHER = (PROBLEMS, 12, 1)
ENTERING = (1, 2, 3, 8)
_SHORT_US, _LONG_US = 10.0, 200.0
_KNOWN = 20
"""The number of different noises of earlier runs, which simulated runs take in turn."""


@dataclass(frozen=True)
class Setting:
    """A batch that is decided together: ``problems``, each in ``blocks`` blocks (None: as many as a run would hold).

    ``elsewhere``: the problems take less than 10 µs, and 24 finals of more than 200 µs are known.
    """

    problems: int = PROBLEMS
    blocks: int | None = None
    elsewhere: bool = False

    def __str__(self) -> str:
        if self.elsewhere:
            return f"{self.problems} below {_SHORT_US:g} µs alone, after {USUAL_IS_KNOWN} above {_LONG_US:g} µs"
        return "One problem alone" if self.problems == 1 else f"{self.problems} problems together"

    def durations(self, world: World) -> list[float]:
        """The incumbents' durations in µs of the problems of one run."""
        among = [one.us for one in world.sources if one.us < _SHORT_US or not self.elsewhere]
        drawn: list[float] = world.draw.choice(among, self.problems, replace=self.problems > len(among)).tolist()
        return drawn

    def blocks_of(self, durations: Sequence[float], known: Noise) -> list[int]:
        """The number of blocks of each problem."""
        return [self.blocks] * len(durations) if self.blocks else blocks_of_each(durations, known)


TOGETHER_24, ALONE = Setting(), Setting(1)


@dataclass
class Tally:
    """How often the truth was missed, by the incumbent's duration in µs, and in how many blocks."""

    durations: list[float] = field(default_factory=list)
    wrong: list[bool] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def rate(self, low: float = 0.0, high: float = math.inf) -> float:
        """The part of the decisions that was wrong, of incumbents of ``low`` to ``high`` µs."""
        chosen = [wrong for us, wrong in zip(self.durations, self.wrong, strict=True) if low <= us < high]
        return sum(chosen) / len(chosen) if chosen else math.nan


def simulate(world: World, setting: Setting, kind: str, entering: int, *, gain: bool, runs: int) -> Tally:
    """Decide what ``setting`` says, ``runs`` times, with ``entering`` challengers each."""
    tally = Tally()
    names = [BETTER if gain else "one", DEFAULT, *(f"other {place}" for place in range(entering))][:entering]
    truth = {name: 1 / GAIN if name == BETTER else 1.0 for name in names}
    known = [_noise_of_long_ones(world, kind, truth) for _ in range(_KNOWN)] if setting.elsewhere else [Noise()]
    for run in range(runs):
        for us, blocks, winner in _decided_together(world, setting, kind, truth, known[run % len(known)]):
            tally.durations.append(us)
            tally.blocks.append(blocks)
            tally.wrong.append(winner != BETTER if gain else winner != INCUMBENT)
    return tally


def _decided_together(
    world: World, setting: Setting, kind: str, truth: Mapping[str, float], known: Noise
) -> Iterator[tuple[float, int, str]]:
    """The incumbent's time, the number of blocks and the winner of each problem of a run."""
    durations = setting.durations(world)
    counts = setting.blocks_of(durations, known)
    held = [finals(world, us, kind, truth, count) for us, count in zip(durations, counts, strict=True)]
    noise = sum((observed(INCUMBENT, challengers, blocks) for challengers, blocks in held), known)
    for us, count, (challengers, blocks) in zip(durations, counts, held, strict=True):
        yield us, count, judge(INCUMBENT, challengers, blocks, noise).winner


def _noise_of_long_ones(world: World, kind: str, truth: Mapping[str, float]) -> Noise:
    among = [one.us for one in world.sources if one.us > _LONG_US]
    held = [finals(world, us, kind, truth, BLOCKS) for us in world.draw.choice(among, USUAL_IS_KNOWN).tolist()]
    return sum((observed(INCUMBENT, challengers, blocks) for challengers, blocks in held), Noise())


_DECADES = ((0.0, 10.0), (10.0, 100.0), (100.0, math.inf))


def table(world: World, decisions: int, problems: int) -> list[str]:
    """The figures of batches of ``problems`` problems, in Markdown."""
    setting, runs = Setting(problems), math.ceil(decisions / problems)
    held: list[int] = []
    lines = [
        "",
        "| noise | entering | false wins | missed 2% gains | below 10 µs | 10 to 100 µs | above |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in KINDS:
        for entering in ENTERING:
            false = simulate(world, setting, kind, entering, gain=False, runs=runs)
            missed = simulate(world, setting, kind, entering, gain=True, runs=runs)
            held += missed.blocks
            rates = [false.rate(), missed.rate(), *(missed.rate(low, high) for low, high in _DECADES)]
            lines.append(f"| {kind} | {entering} | " + " | ".join(f"{100 * rate:.1f}%" for rate in rates) + " |")
    blocks = f"{round(float(np.mean(held)), 1):g} blocks of {ROUNDS} rounds on average"
    return [f"{setting}: {blocks}; {runs * problems} decisions a figure", *lines]


BY_BLOCKS = (
    Setting(PROBLEMS, BLOCKS),
    Setting(12, BLOCKS),
    *(Setting(1, blocks) for blocks in range(BLOCKS, MOST_BLOCKS + 1)),
    *(Setting(1, blocks, elsewhere=True) for blocks in range(BLOCKS, MOST_BLOCKS + 1)),
)


def table_by_blocks(measured: Sequence[Measured], seed: int, decisions: int) -> list[str]:
    """The rates for each number of blocks, where much and where little is known of noise."""
    lines = [
        f"By the number of blocks; real noise, {MOST_IN_FINALS} entering; {decisions} decisions a figure",
        "",
        "| | blocks | false wins | missed 2% gains |",
        "| --- | ---: | ---: | ---: |",
    ]
    for setting in BY_BLOCKS:
        world, runs = World(measured, seed), math.ceil(decisions / setting.problems)
        rates = [
            simulate(world, setting, "real", MOST_IN_FINALS, gain=gain, runs=runs).rate() for gain in (False, True)
        ]
        lines.append(f"| {setting} | {setting.blocks} | " + " | ".join(f"{100 * rate:.1f}%" for rate in rates) + " |")
    return lines


def main() -> None:
    """Print the figures, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=40 * PROBLEMS, help="a figure")
    parser.add_argument("--noisy", type=int, default=100 * PROBLEMS, help="decisions a row of the table by shift")
    parser.add_argument("--problems", type=int, nargs="+", default=TOGETHER, help="decided together, a table each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=output_folder, metavar="FOLDER")
    options = parser.parse_args()
    environment, measured = load()
    lines = [
        f"$ python -m benchmarks.finals_simulation --decisions {options.decisions} --noisy {options.noisy} "
        f"--problems {' '.join(map(str, options.problems))} --seed {options.seed}",
        "",
        f"Noise of the finals of {len(World(measured, 0).sources)} problems, measured on: {json.dumps(environment)}",
    ]
    for problems in options.problems:
        # every table begins with the same seed, so that each can be made alone
        lines += ["", *table(World(measured, options.seed), options.decisions, problems)]
    lines += ["", *table_by_blocks(measured, options.seed, options.decisions)]
    lines += ["", *table_by_shift(measured, options.seed, options.noisy)]
    print("\n".join(lines))
    if options.write:
        (options.write / "finals_simulation.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
