"""What the checks of winners at other sizes say of their transfers; the checks themselves are given by the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from registry.artifact import Artifact, Variant
from registry.discovery.catalog import Catalog
from registry.dispatch.plans.plan import Candidate
from registry.implementation import Implementation
from registry.tuner.decide.transfers import verified_transfers
from registry.tuner.events import Event, Note, TransfersStarted
from registry.tuner.jobs import Outcome, VerificationJob
from registry.tuner.measure.protocol import TimingProtocol
from registry.tuner.planning.problems import plan
from registry.tuner.search.findings import Findings
from tests.tuner.planning.test_twin import H200
from tuning_db import Transfer

WRONG = Outcome("wrong_result", "off by one")
Say = Callable[[int], Outcome]


class Bench:
    """Compiles what ``compiles`` says of a variant, and answers a job by ``says`` of its columns."""

    def __init__(self, says: Say = lambda cols: Outcome("ok"), compiles: Callable[[Variant], bool] = lambda _: True):
        self.says, self.compiles = says, compiles
        self.jobs: list[VerificationJob] = []

    def built(self, wanted: Sequence[tuple[Implementation, Variant]]) -> Mapping[str, Artifact]:
        return {variant.key: Artifact(variant) for _, variant in wanted if self.compiles(variant)}

    def run_blocks(self, jobs: Sequence[VerificationJob]) -> list[Outcome]:
        self.jobs += jobs
        return [self.says(int(job.dims["cols"])) for job in jobs]


@pytest.fixture
def winners(catalog: Catalog) -> list[tuple[Findings, Candidate]]:
    """One candidate that has won at two numbers of rows."""
    pytest.importorskip("triton")
    op = catalog.op("softmax")
    problems = [op.problem_of({"rows": rows, "cols": 4096, "dtype": "bfloat16"}) for rows in (256, 8192)]
    plans = plan(problems, catalog, H200, ["triton.row"])
    (choice,) = plans[0].supported
    assert choice.default is not None
    return [(Findings(each, 0), Candidate(choice.implementation, choice.default)) for each in plans]


def found(
    winners: list[tuple[Findings, Candidate]], bench: Bench, events: list[Event] | None = None
) -> list[Transfer | None]:
    seen: list[Event] = [] if events is None else events
    transfers = verified_transfers(winners, TimingProtocol.of(H200), bench, seen.append)
    return [transfers.get(findings.plan.problem, {}).get("cols") for findings, _ in winners]


def test_winners_of_one_candidate_share_their_checks(winners: list[tuple[Findings, Candidate]]) -> None:
    alone, bench, events = Bench(), Bench(), list[Event]()
    found(winners[:1], alone)
    both = found(winners, bench, events)
    assert len(bench.jobs) == len(alone.jobs) > 2
    assert all(job.of_own_size for job in bench.jobs), "other sizes were met by the same code"
    assert both[0] == both[1]
    assert both[0] is not None
    assert (both[0].low, both[0].high) == (2049, 4096)
    assert len(both[0].codes) == len(alone.jobs) / 2
    assert events == [TransfersStarted(2, len(bench.jobs))]


def test_each_check_brings_what_its_code_consists_of(winners: list[tuple[Findings, Candidate]]) -> None:
    bench = Bench()
    codes = found(winners, bench)[0]
    assert codes is not None
    assert {len(job.entrant.artifacts) for job in bench.jobs} == {len(codes.codes)}


@pytest.mark.parametrize("size", [2049, 4096])
@pytest.mark.few(1)
def test_one_that_is_wrong_at_an_end_runs_at_its_own_size_alone(
    winners: list[tuple[Findings, Candidate]], size: int
) -> None:
    events: list[Event] = []
    bench = Bench(lambda cols: WRONG if cols == size else Outcome("ok"))
    assert found(winners, bench, events) == [Transfer(4096, 4096)] * 2
    notes = [event.message for event in events if isinstance(event, Note)]
    assert len(notes) == 2
    assert notes[0].endswith(f"answers for no other size: cols={size}: wrong_result: off by one")


def test_a_code_that_could_not_be_seen_is_none_of_the_transfer(winners: list[tuple[Findings, Candidate]]) -> None:
    everywhere = found(winners, Bench())[0]
    full = Outcome("out_of_memory", "full")
    partly = found(winners, Bench(lambda cols: full if cols == 2049 else Outcome("ok")))[0]
    assert everywhere is not None
    assert partly is not None
    assert set(partly.codes) < set(everywhere.codes)
    assert partly.low > 2049
    assert found(winners, Bench(lambda _: full)) == [None, None]
