"""Large problems have a smaller twin, which the same compiled code runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.contract import Floor
from registry.contracts import SOFTMAX
from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate, build
from registry.errors import RegistryError
from registry.tuner.jobs import Entrant, Outcome, TrialJob
from registry.tuner.limits import Budget
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import plan
from registry.tuner.planning.twin import LARGE_BYTES, twin_of
from registry.tuner.search.state import SearchState
from registry.tuner.verify.session import Session
from registry.tuner.workers.worker import Worker

CPU = Device.of("cpu")
H200 = Device("cuda", 0, "NVIDIA H200", "sm_90", 132, 141 * 2**30, 60 * 2**20, 227 * 1024, 65536)
LARGE = {"rows": 8192, "cols": 128256, "dtype": "bfloat16"}


def test_a_problem_that_is_not_large_has_none(catalog: Catalog) -> None:
    op = catalog.op("softmax")
    assert twin_of(op, op.problem_of({"rows": 64, "cols": 4096, "dtype": "float32"})) is None


def test_the_twin_differs_in_its_largest_dynamic_dimension_which_stays_a_multiple_of_sixteen(catalog: Catalog) -> None:
    op = catalog.op("softmax")
    twin = twin_of(op, op.problem_of(LARGE))
    assert twin is not None
    assert {**twin.dims, "rows": 0} == {**LARGE, "rows": 0}
    assert int(twin.dims["rows"]) % 16 == 0
    assert op.floor(twin).bytes <= LARGE_BYTES // 2


def test_a_size_that_cannot_be_halved_so_often_has_no_twin(catalog: Catalog) -> None:
    op = catalog.op("square")
    assert twin_of(op, op.problem_of({"n": 16 * (2**23 + 1), "dtype": "float32"})) is None


@pytest.mark.parametrize("shift", [0, -32])
def test_a_number_that_is_no_size_is_not_halved_for_ever(shift: int) -> None:
    roll = replace(
        SOFTMAX,
        name="test::roll",
        schema="test::roll(Tensor x, int shift) -> Tensor y",
        backward=None,
        static=frozenset({"dtype"}),
        dynamic=frozenset({"shift"}),
        transfers={},
        check=None,
        floor=lambda _: Floor(2 * LARGE_BYTES, 0),
    )
    assert twin_of(roll, roll.problem_of({"shift": shift, "dtype": "float32"})) is None


def test_a_search_asks_for_what_the_twin_needs_beside_its_own_variants(catalog: Catalog) -> None:
    """A Triton kernel's variant serves any number of rows; torch.compile's is of one shape."""
    pytest.importorskip("triton")
    (planned,) = plan([catalog.op("softmax").problem_of(LARGE)], catalog, H200, ["triton.online"])
    search = SearchState(planned, Budget(), (), 0)
    waiting = search.ask(1)[0]
    assert (len(waiting.variants), waiting.extra, waiting.fault) == (1, (), "")
    (compiled,) = plan([catalog.op("softmax").problem_of(LARGE)], catalog, H200, ["torch.compile"])
    waiting = SearchState(compiled, Budget(), (), 0).ask(1)[0]
    assert len(waiting.extra) == 1
    assert waiting.extra[0].key != waiting.variants[0].key


def test_a_search_asks_for_what_inputs_with_another_epsilon_need(catalog: Catalog) -> None:
    """torch.compile compiles an attribute in; a kernel of Triton is given it."""
    pytest.importorskip("triton")
    op = catalog.op("rms_norm")
    problem = op.problem_of({"rows": 64, "cols": 512, "dtype": "bfloat16"})
    planned = plan([problem], catalog, H200, ["torch.compile", "triton.row"])[0]
    asked = {one.candidate.implementation.name: one for one in SearchState(planned, Budget(), (), 0).ask(4)}
    assert asked["triton.row"].extra == ()
    (variant,), (other,) = asked["torch.compile"].variants, asked["torch.compile"].extra
    epsilons = [[each["value"] for each in one.spec["arguments"] if "value" in each] for one in (variant, other)]
    assert epsilons == [[1e-6], [1e-5]]


def test_it_runs_from_the_artifacts_at_hand_or_not_at_all(catalog: Catalog) -> None:
    op = catalog.op("square")
    problem = op.problem_of({"n": 2**25, "dtype": "float32"})
    twin = twin_of(op, problem)
    assert twin is not None
    implementation = catalog.implementation("square", "cpp.blocks")
    candidate = Candidate(implementation, implementation.default(problem, CPU))
    there = Session(op, twin, CPU, TimingProtocol.of(CPU), 0)
    assert there.bound(candidate, {}) is None
    try:
        built = build(op, candidate, twin, there.arguments, CPU)
    except RegistryError:
        pytest.skip("no C++ compiler")
    found = there.bound(candidate, {artifact.variant.key: artifact for artifact in built.artifacts})
    assert found is not None
    assert found.problem == twin


def test_after_a_wrong_candidate_the_twins_inputs_are_made_anew_too(catalog: Catalog) -> None:
    """It may have written to them, and the next candidate must not be blamed."""
    op, protocol = catalog.op("square"), TimingProtocol.of(CPU)
    problem = op.problem_of({"n": 2**25, "dtype": "float32"})
    twin = twin_of(op, problem)
    assert twin is not None
    worker = Worker(catalog, CPU)
    before = [worker.session(each, protocol, seed=0) for each in (problem, twin)]
    assert [worker.session(each, protocol, seed=0) for each in (problem, twin)] == before
    job = TrialJob(1, "square", dict(problem.dims), Entrant("torch.native", {}), dict(protocol.details), 0)
    worker.start_afresh(job, Outcome("wrong_result"))
    after = [worker.session(each, protocol, seed=0) for each in (problem, twin)]
    assert all(one is not other for one, other in zip(before, after, strict=True))
