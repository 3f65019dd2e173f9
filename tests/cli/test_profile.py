"""``registry profile``: of problems and of programs, on the CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .. import fresh
from .conftest import Command

PROGRAM = """
import sys, threading, torch
import registry

def work():
    for _ in range(3):
        registry.call("square", torch.ones(64))

if __name__ == "__main__":
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("arguments", sys.argv[1:])
    sys.exit(3)
"""


def test_problems_are_timed_by_op_and_implementation(command: Command, tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.yaml"
    shapes.write_text(
        "square:\n  - {n: [64, 4096], dtype: float32}\nrms_norm:\n  - {rows: 2, cols: 64, dtype: float32}\n"
    )
    trace, board = tmp_path / "trace.json", tmp_path / "board"
    arguments = ["--shapes", shapes, "--device", "cpu", "--calls", "3"]
    told = command("registry", "profile", *arguments, "--trace", trace, "--tensorboard", board)
    assert told.code == 0
    lines = told.out.splitlines()
    assert lines[0].split()[:3] == ["problem", "implementation", "calls"]
    assert sum(line.startswith(("square n=", "rms_norm rows=2 cols=64")) for line in lines) == 3
    assert lines[-1].startswith("9 calls of ops")
    names = {event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]}
    assert any(name.startswith("kernel_registry::rms_norm (") and "cols=64" in name for name in names)
    (kept,) = board.glob("*.pt.trace.json")
    assert kept.read_text() == trace.read_text()
    rows = json.loads(command("registry", "profile", *arguments, "--op", "square", "--json").out)
    assert {(row["op"], row["calls"]) for row in rows} == {("square", 3)}
    assert all(row["floor_us"] > 0 and row["median_us"] > 0 and 0 < row["share"] <= 1 for row in rows)


@pytest.mark.thorough
def test_a_program_is_profiled_to_its_end_and_its_exit_code_passed_on(command: Command, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    told = command("registry", "profile", "--json", "--", script, "--own=1", "-x")
    assert told.code == 3
    (row,) = json.loads(told.out)
    assert (row["op"], row["dims"], row["calls"]) == ("square", "n=64 dtype=float32", 6)
    ran = command("registry", "profile", "--op", "rms_norm,square", "--", script)
    assert (ran.code, ran.err) == (3, "")
    assert "square n=64" in ran.out
    assert ran.out.splitlines()[-1].startswith("6 calls of ops")
    assert command("registry", "profile", "--op", "rms_norm", "--json", "--", script).out == "[]\n"


@pytest.mark.thorough
def test_without_a_gpu_torchs_profiler_tells_nothing_between_the_programs_lines(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("for a machine without a GPU")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = fresh.run(script, env={**os.environ, "KERNEL_REGISTRY_PROFILE": str(tmp_path)})
    assert (done.returncode, done.stderr) == (3, "")
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing to profile"),
        (["--shapes", "a.yaml", "--", "true"], "both --shapes and a command"),
        (["--ncu", "--", "true"], "--ncu is for --shapes"),
        (["--op", "sqare", "--", "true"], "unknown op 'sqare'\n  did you mean square?"),
        (["--op", "its::own", "--", "true"], "no trace was written; the program's exit code is 0"),
        (["--trace", "absent/trace.json", "--", "false"], "--trace absent/trace.json: no such folder"),
        (["--trace", ".", "--", "false"], "--trace .: a folder"),
        (["--tensorboard", "/dev/null", "--", "false"], "--tensorboard /dev/null: File exists"),
        (["--shapes", "a.yaml", "--calls", "0"], "--calls 0"),
        (["--shapes", "absent.yaml"], "no such file"),
        (["--", "no-such-program"], "no-such-program: No such file"),
        (["--", "true"], "no trace was written; the program's exit code is 0"),
    ],
)
def test_what_cannot_be_profiled_is_one_line(command: Command, arguments: list[str], told: str) -> None:
    ran = command("registry", "profile", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


RANGES = """
import torch, registry
names = []
push = torch.cuda.nvtx.range_push
torch.cuda.nvtx.range_push = lambda name: names.append(name) or push(name)
for _ in range(3):
    registry.call("square", torch.ones(64))
print(len(names), *sorted(set(names)))
"""


@pytest.mark.thorough
def test_calls_have_nvtx_ranges_where_they_are_wanted(tmp_path: Path) -> None:
    import torch

    if not hasattr(torch._C, "_nvtx"):
        pytest.skip("this torch has no NVTX")
    script = tmp_path / "program.py"
    script.write_text(RANGES)
    for wanted, told in (("1", "3 kernel_registry::square ("), ("0", "0")):
        done = fresh.run(script, env={**os.environ, "KERNEL_REGISTRY_NVTX": wanted})
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(told)
