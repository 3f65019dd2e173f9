"""The machine against itself: what enters as two, timed by a real worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.artifact import Artifact, Variant
from registry.contract import Tolerance
from registry.contracts import SQUARE
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.problem import Problem
from registry.tuner.decide.machine_noise import aa_job, aa_of, default_job, earlier_noise
from registry.tuner.decide.noise import PAIRS_PER_DECADE, Noise, Pair
from registry.tuner.jobs import BlockJob, Entrant, Outcome, TimedBlock
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import plan
from registry.tuner.search.findings import Finding, Findings
from registry.tuner.workers.worker import Worker
from tuning_db import Environment, Store

CPU = Device.of("cpu")


def searched(catalog: Catalog, n: int, status: str) -> Findings:
    """A search in which every default ended so."""
    (planned,) = plan([Problem("square", {"n": n, "dtype": "float32"})], catalog, CPU, ["torch.native"])
    search = Findings(planned, seed=7)
    for default in planned.defaults():
        search.learn(Finding(default, status, 5.0 if status == "ok" else None, censored=False, uid="u"))
    return search


def test_a_worker_times_the_smallest_problems_copy_as_two_pairs_and_nothing_unverified(catalog: Catalog) -> None:
    problems = [Problem("square", {"n": n, "dtype": "float32"}) for n in (40_000, 4_000, 2**42)]
    job = aa_job(plan(problems, catalog, CPU), TimingProtocol.of(CPU))
    assert job is not None
    assert dict(job.dims)["n"] == 4_000
    assert [(entrant.implementation, entrant.role) for entrant in job.entrants] == [("", "floor")] * 4
    answer = Worker(catalog, CPU).block(job, lambda step: None)
    assert answer.faults == ("",) * 4
    noise = aa_of(answer)
    assert len(noise.single) == PAIRS_PER_DECADE
    assert all(pair.us > 0 for pair in noise.single)
    assert noise.aa(noise.single[0].us) > 0


def test_an_op_that_is_refused_costs_a_block_and_not_its_worker(catalog: Catalog) -> None:
    blind = Tolerance(dict.fromkeys(SQUARE.tolerance.rtol, 2.0), SQUARE.tolerance.atol, SQUARE.tolerance.scale)
    schema = "acme::square(Tensor x) -> Tensor y"
    catalog.define(replace(SQUARE, name="acme::square", schema=schema, tolerance=blind, examples=()))
    job = BlockJob(
        0, "acme::square", {"n": 4_000, "dtype": "float32"}, (Entrant("", {}, (), "floor"),) * 4,
        dict(TimingProtocol.of(CPU).details), seed=0, rounds=10,
    )  # fmt: skip
    answer = Worker(catalog, CPU).block(job, lambda step: None)
    assert len(answer.faults) == 4
    assert all("accepts an all-zero output" in fault for fault in answer.faults)
    assert not aa_of(answer).single


def test_after_a_search_the_smallest_problems_right_default_is_timed_as_two(catalog: Catalog) -> None:
    searches = [searched(catalog, *one) for one in ((40_000, "ok"), (4_000, "ok"), (400, "crash"), (40, "error"))]
    job = default_job(searches, TimingProtocol.of(CPU))
    assert job is not None
    assert dict(job.dims)["n"] == 4_000
    assert [(entrant.implementation, entrant.role) for entrant in job.entrants] == [("torch.native", "candidate")] * 2
    answer = Worker(catalog, CPU).block(job, lambda step: None)
    assert answer.faults == ("", "")
    assert len(aa_of(answer).single) == PAIRS_PER_DECADE


def test_a_default_is_run_from_what_the_search_has_compiled(catalog: Catalog) -> None:
    search = searched(catalog, 4_000, "ok")
    default = search.default()
    assert default is not None
    built = Artifact(Variant("triton", "kernel", {}), "kernel.cubin")
    search.remember(default, (built,))
    job = default_job([search], TimingProtocol.of(CPU))
    assert job is not None
    assert [entrant.artifacts for entrant in job.entrants] == [(built,)] * 2


def test_where_no_default_was_right_none_is_timed(catalog: Catalog) -> None:
    assert default_job([searched(catalog, 4_000, "wrong_result")], TimingProtocol.of(CPU)) is None


def test_runs_before_in_the_same_environment_tell_their_noise(store: Store) -> None:
    here, elsewhere = Environment(CPU.hardware(), {"torch": "2"}), Environment({"name": "other"}, {})
    noise = Noise(single=(Pair(10.0, 1.01),), variances=((10.0, 1e-5),))
    for environment in (here, elsewhere, here):
        store.end_run(store.start_run(environment), {"noise": noise.details})
    store.start_run(here)
    assert earlier_noise(store, here) == noise + noise


def test_without_a_problem_there_is_nothing_to_time(catalog: Catalog) -> None:
    huge = plan([Problem("square", {"n": 2**42, "dtype": "float32"})], catalog, CPU)
    assert aa_job(huge, TimingProtocol.of(CPU)) is None


def test_a_pair_is_the_median_ratio_of_ten_rounds() -> None:
    one, other = (10.0,) * 20, (*(11.0,) * 10, *(9.0,) * 10)
    found = aa_of(TimedBlock((one, other), ("", ""), ((), ()), 0.1))
    assert [pair.ratio for pair in found.single] == pytest.approx([1.1, 0.9])
    assert aa_of(TimedBlock(((), one), ("out_of_memory", ""), ((), ()), 0.1)).single == ()
    lost = TimedBlock(((), one, one, other), ("out_of_memory", "", "", ""), ((),) * 4, 0.1)
    assert [pair.ratio for pair in aa_of(lost).single] == pytest.approx([1.1, 0.9]), "the others are still pairs"
    assert aa_of(Outcome("crash", "gone")).single == ()


def test_a_fault_in_an_ops_own_code_costs_a_block_and_not_its_worker(catalog: Catalog) -> None:
    def check(problem: Problem) -> None:
        raise ValueError("no luck today")

    schema = "acme::square(Tensor x) -> Tensor y"
    catalog.define(replace(SQUARE, name="acme::square", schema=schema, examples=()))
    broken = catalog.op("acme::square")
    object.__setattr__(broken, "check", check)
    job = BlockJob(
        0, "acme::square", {"n": 4_000, "dtype": "float32"}, (Entrant("", {}, (), "floor"),) * 2,
        dict(TimingProtocol.of(CPU).details), seed=0, rounds=10,
    )  # fmt: skip
    answer = Worker(catalog, CPU).block(job, lambda step: None)
    assert all(fault.startswith("error: ") and "no luck today" in fault for fault in answer.faults)
    assert len(answer.faults) == 2
    assert answer.seconds > 0
