"""A model of the times of untried candidates: Gaussian processes over the places of parameter values.

One process an implementation, Matérn 5/2 with a length scale a parameter. The hyperparameters are not optimised but
integrated: a few particles, weighted by marginal likelihood and moved as data arrive, which needs no gradients and does
not trust a single fit to ten points. After Snoek, Larochelle and Adams, "Practical Bayesian Optimization" (2012), and
Hellsten et al., "BaCO" (2023), for ordinal parameters of compilers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....points import PointNumbers
from ..joint_space import Block, JointSpace, Reals

_PARTICLES = 16
_PREDICTING = 4
_JITTER = 1e-6
_MOVES = 0.4
_OFFSET_VARIANCE = 1.0
_TABLE = 16_384
"""The most candidates with a table of features: making them for every covariance took a fifth of a proposal."""
_erf = np.frompyfunc(math.erf, 1, 1)


class GaussianProcess:
    """The model of one implementation's times. Data are log times, centred by the caller."""

    def __init__(self, block: Block, random: np.random.Generator) -> None:
        self._random = random
        self._block, self._owners = block, block.owners()
        self._table = block.features(np.arange(block.size)) if block.size <= _TABLE else None
        self._parameters = len(block.space.domains)
        self._particles = self._drawn(_PARTICLES)
        self._logs = self._prior(self._particles)
        self._seen: PointNumbers = np.zeros(0, dtype=np.int64)
        self._values: Reals = np.zeros(0)

    def fit(self, seen: PointNumbers, values: Reals) -> None:
        """Move the particles towards values that explain the data. ``seen`` are rows of the block."""
        self._seen, self._values = seen, values
        if len(seen) < 3 or not len(self._owners):
            return
        self._logs = self._posterior_of(self._particles)
        self._resample()
        moved = self._particles + self._random.normal(0.0, _MOVES, (_PARTICLES, 1)) * self._random.standard_normal(
            self._particles.shape
        )
        logs = self._posterior_of(moved)
        accepted = np.log(self._random.random(_PARTICLES)) < logs - self._logs
        self._particles = np.where(accepted[:, None], moved, self._particles)
        self._logs = np.where(accepted, logs, self._logs)

    def improvements(self, rows: PointNumbers, pending: PointNumbers, best: float) -> Reals:
        """Expected improvement of each of ``rows`` on ``best``, averaged over the likeliest particles.

        ``pending`` candidates are assumed to take their expected time.
        """
        particles = self._particles[np.argsort(-self._logs)[:_PREDICTING]]
        values = np.broadcast_to(self._values, (len(particles), len(self._values)))
        if len(pending):
            means, _ = self._solve(particles, self._seen, values, pending)
            values = np.concatenate([values, means], axis=1)
        means, variances = self._solve(particles, np.concatenate([self._seen, pending]), values, rows)
        gain, deviations = best - means, np.sqrt(variances)
        z = gain / deviations
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = 0.5 * (1.0 + np.asarray(_erf(z / math.sqrt(2.0)), dtype=np.float64))
        return np.asarray((gain * below + deviations * density).mean(axis=0), dtype=np.float64)

    # a particle: log length scale of every parameter, log signal deviation, log noise deviation

    def _drawn(self, count: int) -> Reals:
        shape = (count, self._parameters)
        scales = math.log(0.7) + 0.7 * self._random.standard_normal(shape)
        signal = math.log(0.4) + 0.5 * self._random.standard_normal((count, 1))
        noise = math.log(0.04) + 0.5 * self._random.standard_normal((count, 1))
        return np.concatenate([scales, signal, noise], axis=1)

    def _prior(self, particles: Reals) -> Reals:
        scales, signal, noise = particles[:, :-2], particles[:, -2], particles[:, -1]
        logs = -0.5 * (((scales - math.log(0.7)) / 0.7) ** 2).sum(axis=1)
        return logs - 0.5 * ((signal - math.log(0.4)) / 0.5) ** 2 - 0.5 * ((noise - math.log(0.04)) / 0.5) ** 2  # type: ignore[no-any-return]

    def _posterior_of(self, particles: Reals) -> Reals:
        covariance = self._covariance(particles, self._seen, self._seen, noisy=True)
        root = np.linalg.cholesky(covariance)
        values = np.broadcast_to(self._values[None, :, None], (len(particles), len(self._values), 1))
        white = np.linalg.solve(root, values)[..., 0]
        determinant = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        return self._prior(particles) - 0.5 * (white**2).sum(axis=1) - determinant  # type: ignore[no-any-return]

    def _resample(self) -> None:
        weights = np.exp(self._logs - self._logs.max())
        ladder = (np.arange(_PARTICLES) + self._random.random()) / _PARTICLES
        chosen = np.searchsorted(np.cumsum(weights / weights.sum()), ladder).clip(0, _PARTICLES - 1)
        self._particles, self._logs = self._particles[chosen], self._logs[chosen]

    def _features(self, rows: PointNumbers) -> Reals:
        return self._block.features(rows) if self._table is None else self._table[rows]

    def _covariance(self, particles: Reals, left: PointNumbers, right: PointNumbers, *, noisy: bool) -> Reals:
        inverse = np.exp(-particles[:, self._owners])
        one = self._features(left)[None] * inverse[:, None, :]
        two = self._features(right)[None] * inverse[:, None, :]
        squares = one @ two.transpose(0, 2, 1)
        squares *= -2.0
        squares += (one**2).sum(axis=2)[:, :, None]
        squares += (two**2).sum(axis=2)[:, None, :]
        covariance = _matern(squares)
        covariance *= np.exp(2.0 * particles[:, -2])[:, None, None]
        covariance += _OFFSET_VARIANCE
        if noisy:
            noise = np.exp(2.0 * particles[:, -1]) + _JITTER
            covariance += noise[:, None, None] * np.eye(len(left))
        return covariance

    def _solve(self, particles: Reals, seen: PointNumbers, values: Reals, rows: PointNumbers) -> tuple[Reals, Reals]:
        spread = np.exp(2.0 * particles[:, -2]) + _OFFSET_VARIANCE + np.exp(2.0 * particles[:, -1])
        if not len(seen):
            shape = (len(particles), len(rows))
            return np.zeros(shape), np.broadcast_to(spread[:, None], shape)
        root = np.linalg.cholesky(self._covariance(particles, seen, seen, noisy=True))
        cross = self._covariance(particles, seen, rows, noisy=False)
        both = np.linalg.solve(root, np.concatenate([cross, values[:, :, None]], axis=2))
        white, target = both[:, :, :-1], both[:, :, -1:]
        means = (white * target).sum(axis=1)
        variances = np.maximum(spread[:, None] - (white**2).sum(axis=1), 1e-8)
        return means, variances


def _matern(squares: Reals) -> Reals:
    """Matérn 5/2 of squared distances, in place: this is where the time goes."""
    np.maximum(squares, 0.0, out=squares)
    squares *= 5.0
    distances = np.sqrt(squares)
    squares /= 3.0
    squares += 1.0
    squares += distances
    np.negative(distances, out=distances)
    squares *= np.exp(distances, out=distances)
    return squares


class Surrogate:
    """A Gaussian process for every implementation of a problem."""

    def __init__(self, space: JointSpace, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._space = space
        self._processes = {name: GaussianProcess(block, random) for name, block in space.blocks.items()}
        self._centre = 0.0

    def fit(self, logs: dict[int, float]) -> None:
        """Learn log times by candidate number."""
        self._centre = float(np.median(list(logs.values()))) if logs else 0.0
        for name, process in self._processes.items():
            block = self._space.blocks[name]
            seen = [number for number in logs if block.start <= number < block.stop]
            values = np.array([logs[number] - self._centre for number in seen])
            process.fit(np.array(seen, dtype=np.int64) - block.start, values)

    def improvements(self, untried: Sequence[int] | PointNumbers, pending: Sequence[int], best: float) -> Reals:
        """Expected improvement of each untried candidate on the best log time."""
        numbers = np.asarray(untried, dtype=np.int64)
        found = np.zeros(len(numbers))
        waiting = np.asarray(pending, dtype=np.int64)
        for name, process in self._processes.items():
            block = self._space.blocks[name]
            inside = (numbers >= block.start) & (numbers < block.stop)
            if inside.any():
                held = waiting[(waiting >= block.start) & (waiting < block.stop)] - block.start
                found[inside] = process.improvements(numbers[inside] - block.start, held, best - self._centre)
        return found
