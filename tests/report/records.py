"""A small tuning database, as a run leaves one."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from registry.tuner.decide.noise import Noise, Pair
from tuning_db import CandidateKey, Decision, Environment, Interval, ProblemKey, Protocol, Store, Trial

H200 = Environment({"type": "cuda", "name": "NVIDIA H200", "memory_bytes": 2**37}, {"torch": "2.11.0", "driver": "580"})
OLDER = Environment(H200.hardware, {"torch": "2.10.0", "driver": "570"})
COLD = Protocol("cold", {"clock": "cuda_event", "cache_bytes": 62914560})
HOT = Protocol("hot", {"clock": "cuda_event"})
NOISE = Noise(
    decided=(Pair(5.6, 1.011), Pair(5.6, 0.996), Pair(61.0, 1.002)),
    single=(Pair(10.0, 1.12), Pair(10.0, 0.9), Pair(100.0, 1.03)),
    variances=((5.6, 1.2e-5), (61.0, 3e-6)),
    copies=((5.6, 8e-6),),
)
"""Four pairs at about 10 µs, of which two differ by a tenth; two at about 100 µs."""
HOSTILE = '<script>alert("&")</script>'

ROW = CandidateKey("triton.row", "f1", {"num_warps": 4})
TORCH = CandidateKey("torch.native", "f2", {})
SPLIT = CandidateKey("triton.split", "f3", {"BLOCK": 1024, "num_warps": 8})


def softmax(rows: int, cols: int = 4096) -> ProblemKey:
    return ProblemKey("softmax", 1, {"rows": rows, "cols": cols, "dtype": "bfloat16"}, ("cols", "dtype"))


def trial(
    problem: ProblemKey,
    candidate: CandidateKey,
    us: float | None,
    status: str = "ok",
    environment: Environment = H200,
    **fields: Any,
) -> Trial:
    return Trial(problem, candidate, environment, COLD, status, median_us=us, samples=(us or 1.0,) * 10, **fields)


def decision(problem: ProblemKey, candidate: CandidateKey, us: float, **fields: Any) -> Decision:
    given: Mapping[str, Any] = {"floor_us": us / 2, "ratio": 1.4, "lo": 1.36, "hi": 1.44, "aa": 0.01, "verdict": "new"}
    return Decision(problem, H200, COLD, candidate, us, **{**given, **fields})


@functools.cache
def made_once(make: Callable[[Path], Path]) -> bytes:
    """The database that it makes: to write its file takes a hundredth of the time that it takes to fill it."""
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder) / "tuning.db").read_bytes()


def fill(path: Path) -> Path:
    """Two sizes of one softmax and one of another, torch three times as slow, a failure of each kind, a tie."""
    path.write_bytes(made_once(_fill))
    return path


def _fill(path: Path) -> Path:
    with Store.open(path) as store:
        run = store.start_run(H200, {"problems": 3})
        for rows, us in ((1, 4.0), (256, 16.0)):
            problem = softmax(rows)
            trials = [trial(problem, TORCH, 3 * us), trial(problem, ROW, us * 1.5), trial(problem, SPLIT, us)]
            trials += [
                trial(problem, CandidateKey("triton.row", "f1", {"num_warps": 32}), 9 * us, censored=True),
                trial(
                    problem, CandidateKey("triton.row", "f1", {"num_warps": 16}), None, "wrong_result", message=HOSTILE
                ),
            ]
            store.add_trials(run, trials)
        first = decision(
            softmax(1), SPLIT, 4.0, baselines={"torch.native": 3.0, "triton.row": 1.5},
            default_ratio=Interval(1.42, 1.31, 1.55),
        )  # fmt: skip
        store.publish(run, first)
        tie = decision(
            softmax(256), SPLIT, 16.0, ratio=1.0, lo=0.99, hi=1.01, verdict="tie",
            baselines={"torch.native": 3.0, "triton.row": 1.005},
            ties=("triton.row num_warps=4", "triton.split BLOCK=2048"),
        )  # fmt: skip
        store.publish(run, tie)
        store.add_trials(run, [trial(softmax(8, cols=128256), TORCH, 50.0)])
        ended = {"seconds": 61.0, "worker_seconds": 40.0, "worker_share": 0.66, "noise": NOISE.details}
        store.end_run(run, ended)
    return path
