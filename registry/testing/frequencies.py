"""A check of what draws at random, by how often each value comes."""

from __future__ import annotations

import math

import torch

from ..errors import CheckError, InvalidArgumentError

MOST_VALUES = 4096
"""Values that are told apart: more need samples by the million to be judged."""


def check_frequencies(samples: torch.Tensor, probabilities: torch.Tensor, false_alarm: float = 1e-9) -> None:
    """Check that independent samples may come from a distribution; raises CheckError if not.

    samples        integers ``[n]``, each an index of ``probabilities``
    probabilities  ``[values]``, which add up to 1; a value of probability 0 may not come at all
    false_alarm    the chance, at most, that samples of this very distribution are refused

    The distance of the frequencies, the sum of ``abs(frequency - probability)``, is compared with
    ``sqrt(2 * (values * log(2) + log(1 / false_alarm)) / n)``, which it exceeds with no more than that chance for any
    distribution and any n (Bretagnolle and Huber-Carol's inequality; Weissman et al. 2003). A sampler whose own
    distribution is twice as far away is refused as surely: 2 ** 17 samples of 12 values tell distances of 0.05.
    """
    expected = probabilities.double().cpu()
    count, values = samples.numel(), expected.numel()
    if not count or not 1 <= values <= MOST_VALUES or not math.isclose(float(expected.sum()), 1.0, abs_tol=1e-6):
        raise InvalidArgumentError(
            f"check_frequencies: {count} samples of {values} values whose probabilities add up to"
            f" {float(expected.sum()):.9g}",
            hint=f"expected samples, and probabilities of 1 to {MOST_VALUES} values that add up to 1",
        )
    found = samples.flatten().long().cpu()
    if ((found < 0) | (found >= values)).any():
        raise CheckError(f"samples from {int(found.min())} to {int(found.max())}, expected 0 to {values - 1}")
    counts = found.bincount(minlength=values)
    impossible = (counts > 0) & (expected == 0.0)
    if impossible.any():
        value = int(impossible.nonzero()[0])
        raise CheckError(f"{int(counts[value])} of {count} samples are {value}, which has the probability 0")
    distances = (counts / count - expected).abs()
    allowed = math.sqrt(2.0 * (values * math.log(2.0) - math.log(false_alarm)) / count)
    if not float(distances.sum()) <= allowed:
        value = int(distances.argmax())
        raise CheckError(
            f"frequencies of {count} samples are {float(distances.sum()):.6f} from the probabilities, allowed"
            f" {allowed:.6f}: {value} came {int(counts[value])} times, expected about"
            f" {float(expected[value]) * count:.1f}"
        )
