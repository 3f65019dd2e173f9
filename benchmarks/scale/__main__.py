"""Time and memory of whole commands, which grow with the numbers of trials, problems, configurations and winners.

    python -m benchmarks.scale [--trials 100000 --trials 1000000] [--only commands] [--out benchmarks/results/cpu]

Every line is a child process: wall-clock time, processor time of all its threads, peak of its resident memory. This
process stays small, since a child's peak counts what its parent held when it started. Ten thousand winners: see
benchmarks.dispatch_overhead.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..arguments import output_folder
from .children import Usage, module, program, run

PARTS = ("commands", "space", "problems", "slow kernel", "workspace")
PROBLEMS = 1000
CONFIGS = 10**6

Line = tuple[str, Usage, str]
"""The name of a command, its time and memory, and what it printed."""


def commands(folder: Path, trials: int) -> Iterator[Line]:
    """The commands results, report, export and import on a database of ``trials`` trials."""
    out, database, file = folder / "out", folder / "trials.db", folder / "export.jsonl"
    made = run(module("benchmarks.scale.database", str(database), "--trials", str(trials)), out)
    yield f"{trials:,} trials: making the database", made, _size(database)
    there = ["--db", str(database)]
    for name, words in {
        "results": ["results", *there],
        "results --op": ["results", "--op", "softmax", *there],
        "report": ["report", "--out", str(folder / "report.html"), *there],
        "export": ["export", str(file), *there],
        "import": ["import", str(file), "--db", str(folder / "new.db")],
        "import again": ["import", str(file), "--db", str(folder / "new.db")],
        "results --trials": ["results", "--trials", *there],
        "results --trials --json": ["results", "--trials", "--json", *there],
    }.items():
        used = run(program("registry", *words), out)
        yield f"{trials:,} trials: registry {name}", used, f"{_size(out)} on stdout"


def space(folder: Path) -> Iterator[Line]:
    """A space of a million configurations, planned and searched, beside one of a thousand."""
    for configs in (1000, CONFIGS):
        out = folder / "out"
        used = run(module("benchmarks.scale.spaces", "--configs", str(configs)), out)
        yield f"about {configs:,} configurations", used, out.read_text().strip()


def problems(folder: Path) -> Iterator[Line]:
    """A shapes file of a thousand problems: what would be tuned, and one trial of each."""
    shapes, out = folder / "many.yaml", folder / "out"
    sizes = ", ".join(str(4096 + 64 * number) for number in range(PROBLEMS))
    shapes.write_text(f"square:\n  - {{n: [{sizes}], dtype: float32}}\n")
    given = ["--shapes", str(shapes), "--device", "cpu", "--implementations", "torch.native"]
    dry = run(program("tune", *given, "--dry-run"), out)
    yield f"{PROBLEMS:,} problems: tune --dry-run", dry, _last(out)
    words = [*given, "--db", str(folder / "problems.db"), "--trials", "1"]
    # on a busy machine two threads wait for each other's core: ten times as long
    used = run(program("tune", *words), out, {"OMP_NUM_THREADS": "1"})
    yield f"{PROBLEMS:,} problems: tune --trials 1", used, _last(out)


def slow_kernel(folder: Path) -> Iterator[Line]:
    """An op whose kernel takes two seconds, with the default budget."""
    shapes, out = folder / "slow.yaml", folder / "out"
    shapes.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    plugin = Path(__file__).with_name("slow_kernel.py")
    words = ["--shapes", str(shapes), "--device", "cpu", "--plugin", str(plugin), "--db", str(folder / "slow.db")]
    used = run(program("tune", *words, "--implementations", "bench.slow"), out)
    yield "a kernel of two seconds: tune", used, _last(out)


def workspace(folder: Path) -> Iterator[Line]:
    """An op whose implementation asks for 4 GB of workspace: decided or refused, but no worker is killed for it."""
    shapes, out = folder / "roomy.yaml", folder / "out"
    shapes.write_text("square:\n  - {n: 4096, dtype: float32}\n")
    plugin = Path(__file__).with_name("large_workspace.py")
    words = ["--shapes", str(shapes), "--device", "cpu", "--plugin", str(plugin), "--db", str(folder / "roomy.db")]
    used = run(program("tune", *words, "--implementations", "bench.roomy,torch.native"), out)
    yield "a workspace of 4 GB: tune", used, _last(out)


OTHERS = {"space": space, "problems": problems, "slow kernel": slow_kernel, "workspace": workspace}


def lines(folder: Path, only: str | None, trials: list[int]) -> Iterator[Line]:
    """Every line of the parts that are wanted, each part in a folder of its own."""
    for number, part in enumerate(PARTS):
        if only not in {None, part}:
            continue
        for count in trials if part == "commands" else [0]:
            inside = folder / f"{number}-{count}"
            inside.mkdir()
            if part == "commands":
                yield from commands(inside, count)
            else:
                yield from OTHERS[part](inside)


def environment() -> str:
    """One line about this machine."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{platform.platform()}, {cores} cores, load {load:.1f} at the start, Python {platform.python_version()}"


def _size(file: Path) -> str:
    return f"{file.stat().st_size / 1e6:.1f} MB"


def _last(out: Path) -> str:
    said = out.read_text(errors="replace").strip().splitlines()
    return said[-1][:160] if said else ""


def main() -> int:
    """Run, print, and write what was printed, line by line, if a folder is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, action="append", help="a database of so many; repeatable")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", type=output_folder, help="also write scale.txt there")
    options = parser.parse_args()
    printed = [f"python -m benchmarks.scale {' '.join(sys.argv[1:])}".strip(), environment()]
    print(*printed, sep="\n", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for what, used, said in lines(Path(folder), options.only, options.trials or [100_000, 10**6]):
            figures = f"{used.wall_s:8.1f} s wall {used.processor_s:8.1f} s processor {used.peak_mib:7.0f} MiB"
            printed.append(f"{what:46} {figures}  {said}{f'  EXIT CODE {used.code}' if used.code else ''}")
            print(printed[-1], flush=True)
            failed += used.code != 0
            if options.out:  # a run of an hour that is ended has told what it found
                (options.out / "scale.txt").write_text("\n".join(printed) + "\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
