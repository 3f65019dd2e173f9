"""What a run on a GPU notes for its report: peaks, the work of problems, and what compiled kernels take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from registry.device import Device
from registry.discovery.catalog import Catalog
from registry.report.facts import read
from registry.report.kernels import kernels
from registry.report.roofline import roofline
from registry.report.work import Work
from registry.tuner.limits import Budget
from registry.tuner.options import TuneOptions
from registry.tuner.run import tune
from tuning_db import Store

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


def test_a_run_notes_peaks_work_and_registers(catalog: Catalog, tmp_path: Path) -> None:
    op, database = catalog.op("linear"), str(tmp_path / "tuning.db")
    dims = {"n": 4096, "k": 4096, "bias": False, "dtype": "bfloat16"}
    problems = [op.problem_of({"m": m, **dims}) for m in (64, 4096)]
    options = TuneOptions(Budget(trials=6), implementations=["torch.native", "triton.gemm"])
    tune(problems, catalog=catalog, device=Device.best(), database=database, options=options)
    with Store.open(database) as store:
        (section,) = read(store).sections
    floors = [op.floor(problem) for problem in problems]
    assert [facts.work for facts in section.problems] == [Work(floor.bytes, floor.flop) for floor in floors]
    if torch.version.hip is None:
        assert section.roof is not None
        assert section.roof.bytes_per_us > 0
    chart = roofline(section)
    assert chart is not None
    assert {"torch.native", "triton.gemm", "floor"} <= {line.name for line in chart.lines}
    page = next(page for page in kernels(section, "s0") if page.implementation == "triton.gemm")
    assert page.configs
    assert all(0 < best.resources["registers"] <= 512 for _, best, _ in page.configs)
    assert all(best.resources["shared_bytes"] > 0 for _, best, _ in page.configs)
