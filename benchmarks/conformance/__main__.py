"""The published tests of others against the registry's ops: what passes, what is refused and why, and what is wrong.

    python -m benchmarks.conformance [--opinfo] [--transformers PATH] [--liger PATH] [--flaggems PATH] [--quick]
                                     [--only EXPRESSION] [--jobs N] [--write benchmarks/results]

``--opinfo`` runs PyTorch's samples of the ops that both know, in every dtype of the CPU: outputs, gradients beside
torch's and beside finite differences, and wrong inputs. The other paths are checkouts that you have: transformers at
the installed version (its source distribution will do), Liger-Kernel, FlagGems. Nothing is fetched. Their tests run in
processes of their own, on the GPU where there is one, with shims that call the registry; those of transformers run
twice, with and without ``apply``. ``--quick`` is FlagGems' own option, ``--only`` pytest's -k, to leave out what takes
long without a GPU: "not 32000". ``--jobs`` deals the tests of Liger and FlagGems to so many processes. ``--write``
keeps the counts in conformance.json, beside those of parts that were run before, and conformance.md. The exit code is 1
if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..arguments import folder, positive
from .outcomes import Counts, Outcome, counts_table, reasons_list, together
from .published import counts_by_file, counts_by_model, run_files, run_tests

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_LIGER_ON_CPU = {
    "layer_norm::test_liger_layer_norm": (
        "it compares with torch's gradient of a bfloat16 weight on a CPU, which errs by up to 0.20 from float64's,"
        " the registry's by 0.06"
    )
}
_LIGER_ON_GPU = {
    "geglu::test_correctness": (
        "it compares with two operations in bfloat16 that round twice, as Liger's kernel does; the registry rounds once"
        " and errs by 1.65e-3 of float64's length, they by 1.85e-3"
    )
}
_TITLES = {
    "opinfo": "PyTorch's OpInfo",
    "liger": "Liger-Kernel's tests",
    "flaggems": "FlagGems' tests",
    "transformers": "transformers' tests, with apply",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that are asked for."""
    arguments = _arguments(argv)
    chosen = ["-k", arguments.only] if arguments.only else []
    quick, jobs = ["--quick"] if arguments.quick else [], arguments.jobs
    runs: dict[str, Callable[[], dict[str, Counts]]] = {
        "opinfo": _opinfo,
        "liger": lambda: _liger(arguments.liger, chosen, jobs),
        "flaggems": lambda: _flaggems(arguments.flaggems, [*chosen, *quick], jobs),
        "transformers": lambda: _transformers(arguments.transformers, chosen),
    }
    faults = 0
    for part, run in runs.items():
        if not getattr(arguments, part):
            continue
        groups = run()
        print("\n".join(page_of(part, groups, environment_of(part, arguments))))
        faults += together(groups.values()).faults
        if arguments.write is not None:
            keep(arguments.write, part, groups, environment_of(part, arguments))
    return int(faults > 0)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--opinfo", action="store_true", help="PyTorch's OpInfo samples")
    for name in ("transformers", "liger", "flaggems"):
        parser.add_argument(f"--{name}", type=folder, metavar="PATH", help=f"a checkout of {name}")
    parser.add_argument("--quick", action="store_true", help="FlagGems' quick mode: one dtype, small shapes")
    parser.add_argument("--only", metavar="EXPRESSION", default="", help="pytest's -k: tests by parts of their names")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="processes that tests are dealt to")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep conformance.json and conformance.md there")
    arguments = parser.parse_args(argv)
    if not any(getattr(arguments, part) for part in _TITLES):
        parser.error("nothing to run: --opinfo, or a path")
    return arguments


def _opinfo() -> dict[str, Counts]:
    """The counts of each OpInfo in floating dtypes, and of all in others."""
    from .opinfo import run_opinfo

    groups: dict[str, Counts] = {}
    others = Counts()
    for key, counts in run_opinfo(report=lambda told: print(told, file=sys.stderr)).items():
        name, what = key.split(" ", 1)
        floating = what.startswith(_FLOATS) or what == "wrong inputs"
        (groups.setdefault(name, Counts()) if floating else others).include(counts)
    return {**groups, "integers, bool, complex": others}


def _liger(path: Path, options: Sequence[str], jobs: int) -> dict[str, Counts]:
    from .liger_shim import FILES

    files = [f"test/transformers/test_{name}.py" for name in FILES]
    # Liger's own layers check their targets on a GPU, too
    variables = {"CONFORMANCE_LIGER": str(path.resolve()), "KERNEL_REGISTRY_CHECK": "1"}
    noted = run_files(path, files, options, ["liger_shim"], variables, jobs)
    return counts_by_file(noted, _LIGER_ON_GPU if torch.cuda.is_available() else _LIGER_ON_CPU)


def _flaggems(path: Path, options: Sequence[str], jobs: int) -> dict[str, Counts]:
    from .flaggems_shim import FILES

    files = [f"tests/test_{name}.py" for name in FILES]
    noted = run_files(path, files, options, ["flaggems_shim"], {"CONFORMANCE_FLAGGEMS": str(path.resolve())}, jobs)
    return counts_by_file(noted)


def _transformers(path: Path, options: Sequence[str]) -> dict[str, Counts]:
    file = Path(__file__).with_name("transformers_models.py")
    alone = [
        "-o",
        "addopts=",
        "-o",
        "python_classes=*",
        "-c",
        "/dev/null",
        "--rootdir",
        str(file.parent),
        *options,
        str(file),
    ]
    variables = {"CONFORMANCE_TRANSFORMERS": str(path.resolve()), "HF_HUB_OFFLINE": "1"}
    plain = run_tests(path, alone, [], variables)
    applied = run_tests(path, alone, ["applied"], {**variables, "CONFORMANCE_APPLY": "1"})
    return counts_by_model(plain, applied)


def environment_of(part: str, arguments: argparse.Namespace) -> dict[str, str]:
    """What the counts depend on: versions, the device, and the commit of the tests."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and part != "opinfo" else platform.machine()
    told = {"torch": torch.__version__, "python": platform.python_version(), "device": device}
    if part == "transformers":
        told["transformers"] = version("transformers")
    path: Path | None = getattr(arguments, part) if part != "opinfo" else None
    if path is not None and (path / ".git").exists():
        head = ["git", "-C", str(path), "rev-parse", "HEAD"]
        told["commit"] = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    options = [*(["--quick"] if part == "flaggems" and arguments.quick else []), arguments.only]
    if part != "opinfo" and any(options):
        told["options"] = " ".join(options).strip()
    return told


def page_of(part: str, groups: Mapping[str, Counts], environment: Mapping[str, str]) -> list[str]:
    """Lines of Markdown: the environment, the counts of a part, and the reasons of what did not pass."""
    lines = [f"## {_TITLES[part]}", "", ", ".join(f"{name} {value}" for name, value in environment.items()), ""]
    lines += counts_table({"opinfo": "op", "transformers": "model"}.get(part, "file"), groups)
    every = together(groups.values())
    for outcome in Outcome:
        if told := reasons_list(every, outcome):
            lines += ["", f"{outcome.value.capitalize()}:", "", *told]
    return [*lines, ""]


def keep(folder: Path, part: str, groups: Mapping[str, Counts], environment: Mapping[str, str]) -> None:
    """Write a part to conformance.json in the folder, and conformance.md of all parts there."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "conformance.json"
    parts: dict[str, Any] = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    parts[part] = {"environment": environment, "groups": {name: counts.record() for name, counts in groups.items()}}
    stored.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    lines = ["# The tests of others", "", "Written by `python -m benchmarks.conformance`; see its `--help`.", ""]
    for name in (each for each in _TITLES if each in parts):
        known = {group: Counts.of_record(record) for group, record in parts[name]["groups"].items()}
        lines += page_of(name, known, parts[name]["environment"])
    (folder / "conformance.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
