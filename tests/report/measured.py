"""A small database whose run tells the work of its problems, the peaks of its GPU and what its kernels take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuning_db import CandidateKey, Environment, Interval, ProblemKey, Store

from .records import COLD, H200, HOSTILE, decision, made_once, trial

PEAKS = {"bytes_per_us": 4.8e6, "flop_per_us": 2e9}
TILE = CandidateKey("triton.tile", "f7", {"BLOCK": 64, "num_warps": 4})
WIDE = CandidateKey("triton.tile", "f7", {"BLOCK": 128, "num_warps": 8})
SPILLS = CandidateKey("triton.tile", "f7", {"BLOCK": 256, "num_warps": 8})
CUBLAS = CandidateKey("torch.native", "f8", {})


def gemm(m: int, dtype: str = "bfloat16") -> ProblemKey:
    return ProblemKey("linear", 1, {"m": m, "n": 4096, "k": 4096, "dtype": dtype}, ("n", "k", "dtype"))


def work_of(problem: ProblemKey) -> tuple[float, float]:
    m, n, k = (problem.dims[name] for name in "mnk")
    return 2.0 * (m * k + n * k + m * n), 2.0 * m * n * k


def fill_measured(path: Path, details: dict[str, object] | None = None, environment: Environment = H200) -> Path:
    """Two sizes of a matrix product: the tile wins the small one, torch the large one."""
    if (details, environment) == (None, H200) and not path.exists():
        path.write_bytes(made_once(_fill))
        return path
    return _fill(path, details, environment)


def _fill(path: Path, details: dict[str, object] | None = None, environment: Environment = H200) -> Path:
    problems = {m: gemm(m) for m in (1, 1024)}
    told = {"work": {one.key: list(work_of(one)) for one in problems.values()}, "peaks": PEAKS}
    with Store.open(path) as store:
        run = store.start_run(environment, told if details is None else details)
        for m, us in ((1, 10.0), (1024, 100.0)):
            takes = {"resources": {"registers": 96, "spill_bytes": 0, "shared_bytes": 49152, "threads": 128}}
            spills = {"resources": {"registers": 255, "spill_bytes": 64, "shared_bytes": 98304, "threads": 256}}
            store.add_trials(
                run,
                [
                    trial(problems[m], TILE, us, environment=environment, details=takes),
                    trial(problems[m], WIDE, us * 1.5, environment=environment, details={"resources": HOSTILE}),
                    trial(problems[m], SPILLS, us * 3, environment=environment, details=spills),
                    trial(problems[m], CUBLAS, us * 2, environment=environment),
                ],
            )
        small = decision(problems[1], TILE, 10.0, baselines={"torch.native": 2.0}, floor_us=8.0)
        large = decision(
            problems[1024], CUBLAS, 50.0, baselines={"triton.tile": 1.25}, floor_us=12.0, ratio=1.1, lo=1.05, hi=1.15,
            default_ratio=Interval(1.1, 1.0, 1.2),
        )  # fmt: skip
        for one in (small, large):
            assert one.protocol == COLD
            store.publish(run, replace(one, environment=environment))
    return path
