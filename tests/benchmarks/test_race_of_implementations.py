"""The race of an op's implementations: who takes part, and the table."""

from __future__ import annotations

import pytest
import torch

from benchmarks.racing.implementations import ProblemTimes, contestants, main, table
from registry.backends.inductor import InductorImplementation
from registry.contracts import TOP_K_TOP_P_SAMPLING as OP
from registry.device import Device
from registry.errors import CompileError


@pytest.mark.thorough
def test_every_implementation_of_the_device_takes_part_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise CompileError("torch.compile: an error of Inductor's\nand its trace")

    monkeypatch.setattr(InductorImplementation, "compile", refused)
    problem = OP.problem_of({"rows": 2, "cols": 50, "top_k": True, "top_p": True, "dtype": "float32"})
    calls, faults = contestants(OP, problem, Device.of("cpu"))
    assert {"registry", "torch.native"} <= {*calls}
    assert "cpp.select" in {*calls, *faults}
    assert "cuda.cluster" not in {*calls, *faults}
    # one that does not compile is a fault, and not the end
    assert faults["torch.compile"] == "torch.compile: an error of Inductor's"
    # a rival that is not installed, or that does not take the problem
    assert "exponential race" in faults
    values = OP.inputs(problem, "normal", torch.Generator().manual_seed(1))
    assert torch.equal(calls["registry"](*values), calls["torch.native"](*values))


def test_the_table_has_a_line_for_each_problem_and_a_column_for_each_contestant() -> None:
    rows = [
        ProblemTimes("a", "cuda.cluster", {"triton.looped": 20.0, "registry": 10.125}, {}),
        ProblemTimes("b", "triton.looped", {"registry": 12.0}, {"triton.looped": "too long"}),
    ]
    assert table(rows).splitlines() == [
        "| problem | runs | registry µs | triton.looped µs |",
        "| --- | --- | --- | --- |",
        "| a | cuda.cluster | 10.12 | 20 |",
        "| b | triton.looped | 12 | - |",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures where there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--op", OP.name]) == 2
    assert "needs a GPU" in capsys.readouterr().err
