"""Nsight Compute: what its CSV says, and why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.errors import RegistryError
from registry.problem import Problem
from registry.profiling.ncu import METRICS, MeasuredCall, ncu_command, ncu_reports, parsed_reports, require_ncu

PROBLEM = Problem("softmax", {"rows": 4, "cols": 8, "dtype": "float32"})
COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
    "Rule Description",
)  # fmt: skip


def line(**cells: str) -> str:
    return ",".join(f'"{cells.get(name.replace(" ", "_"), "")}"' for name in COLUMNS)


PAGE = "\n".join(
    [
        "==PROF== Connected to process 1",
        "a line of the program",
        ",".join(f'"{name}"' for name in COLUMNS),
        line(ID="0", Kernel_Name="row(float*, int)", Metric_Name="Duration", Metric_Unit="us", Metric_Value="4.51"),
        line(ID="0", Kernel_Name="row(float*, int)", Metric_Name="Elapsed Cycles", Metric_Value="7,105"),
        line(
            ID="0", Kernel_Name="row(float*, int)", Rule_Name="SOLBottleneck", Rule_Description="Low  use.\nSee more."
        ),
        line(ID="1", Kernel_Name="second", Metric_Name="Grid Size", Metric_Value="1,024"),
    ]
)


def test_the_details_page_is_read_kernel_by_kernel() -> None:
    first, second = parsed_reports(PAGE)
    assert (first.kernel, first.metrics) == ("row(float*, int)", {"Duration": "4.51 us"})
    assert first.advice == {"SOLBottleneck": "Low use. See more."}
    assert (second.kernel, second.metrics, second.advice) == ("second", {"Grid Size": "1,024"}, {})
    assert parsed_reports("==PROF== nothing\n") == []
    assert {"Duration", "Grid Size"} <= set(METRICS)


def test_without_ncu_the_error_tells_where_it_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RegistryError, match="no ncu on the PATH") as fault:
        require_ncu()
    assert "CUDA toolkit" in fault.value.hint


@pytest.mark.parametrize(
    ("said", "told"), [("==ERROR== ERR_NVGPUCTRPERM - no permission", "administrator"), ("some fault", "some fault")]
)
def test_a_program_that_measures_nothing_tells_why(tmp_path: Path, said: str, told: str) -> None:
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RegistryError) as fault:
        ncu_reports(str(program), MeasuredCall(PROBLEM, "cuda:0"))
    assert told in str(fault.value)
    command = ncu_command(str(program), MeasuredCall(PROBLEM, "cuda:0"))
    assert command[0] == str(program)
    assert '"rows": 4' in command[-1]
