"""What installed plugins add to a report: the source of kernels, and the work of problems by their contracts."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.cli.pages.installed import counted_work
from registry.contracts import SOFTMAX
from registry.discovery.catalog import Catalog
from registry.report.work import Work
from tuning_db import CandidateKey, ProblemKey, Store

from ...report.records import H200, TORCH, decision, softmax, trial
from ..conftest import Command


@pytest.mark.thorough
def test_sources_of_what_is_installed_are_shown_on_demand(command: Command, tmp_path: Path) -> None:
    path, out = tmp_path / "some.db", tmp_path / "out.html"
    here = next(one for one in Catalog().implementations("softmax") if one.name.startswith("cpp."))
    with Store.open(path) as store:
        run = store.start_run(H200)
        measured, other = CandidateKey(here.name, here.fingerprint(), {}), CandidateKey("acme.gone", "f", {})
        store.publish(run, decision(softmax(16), measured, 4.0, baselines={"torch.native": 2.0, "acme.gone": 3.0}))
        store.add_trials(run, [trial(softmax(16), TORCH, 8.0), trial(softmax(16), other, 12.0)])
    assert command("registry", "report", "--db", path, "--out", out, "--source").code == 0
    text = out.read_text()
    assert type(here).__name__ in text
    assert "was not installed where the report was written" in text, "acme.gone"
    assert "What is installed is not what was measured" in text, "torch.native of fingerprint f2"
    assert "<h3>Bandwidth</h3>" in text, "the contract counts the bytes"


def test_work_is_counted_by_the_contract_of_the_same_version() -> None:
    known = softmax(16)
    older = ProblemKey("softmax", SOFTMAX.version + 1, known.dims, known.static)
    gone, odd = ProblemKey("acme::gone", 1, {"n": 4}, ()), ProblemKey("softmax", SOFTMAX.version, {"n": "?"}, ())
    floor = SOFTMAX.floor(SOFTMAX.problem_of(dict(known.dims)))
    assert counted_work([known, older, gone, odd]) == {known.key: Work(floor.bytes, floor.flop)}
