"""The model of times: what it expects where it has seen nothing."""

from __future__ import annotations

from registry.space import Space
from registry.tuner.search.joint_space import JointSpace
from registry.tuner.search.samplers.surrogate import Surrogate


def test_most_is_expected_near_the_best_and_next_to_nothing_near_the_worst() -> None:
    space = JointSpace({"acme.one": Space(a=range(50))})
    surrogate = Surrogate(space, 0)
    seen = {number: abs(number - 35) / 20.0 for number in range(0, 50, 6)}
    for _ in range(10):
        surrogate.fit(seen)
    untried = [number for number in range(50) if number not in seen]
    improvements = surrogate.improvements(untried, [], min(seen.values()))
    assert abs(untried[int(improvements.argmax())] - 35) <= 3
    assert improvements[untried.index(1)] < 0.01 * improvements.max()
