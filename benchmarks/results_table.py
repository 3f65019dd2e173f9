"""The tables of docs/results-h200.md, from what ``registry results --json`` wrote.

tune --shapes configs/llm.yaml && registry results --json > benchmarks/results/h200/winners.json
python -m benchmarks.results_table            # rewrites the page
python -m benchmarks.results_table --check    # exit code 1 when it is not what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/h200/winners.json"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PAGE = ROOT / "docs/results-h200.md"

TORCH = "torch.native"
COMPILE = "torch.compile"
COLUMNS = ("problem", "winner", "config", "µs", "of floor", "× torch", "× torch.compile")
HEADER = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"
ORDER = (
    "softmax", "rms_norm", "gemm_int4", "gelu", "square", "vector_add",
    "softmax_backward", "rms_norm_backward", "gelu_backward", "square_backward",
)  # fmt: skip
"""The ops that come first, in this order; the rest come in alphabetical order."""

DIMS = (
    "batch", "tokens", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "page", "lengths", "layout", "causal",
    "rows", "cols", "m", "n", "k", "experts", "routing", "group_size", "bits", "symmetric", "zeros", "act_order",
    "weight", "bias", "activation", "static", "scale", "scales", "approximate", "out_dtype", "dtype",
)  # fmt: skip
"""The usual order of dimensions, which an export sorts. Others stand before the dtype, in alphabetical order."""

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Markdown: a table an op, of its problems from the smallest to the largest, and the environment."""
    parts = []
    for op in _ops(rows):
        mine = sorted((row for row in rows if row["op"] == op), key=lambda row: row["median_us"])
        parts.append(f"**{op}**\n\n{HEADER}\n" + "\n".join(map(_line, mine)))
    return "\n\n".join([*parts, _environment(rows)])


def summary(rows: Sequence[Row]) -> str:
    """One line an op: the number of problems, and of how many each implementation is the winner."""
    lines = ["| op | problems | fastest for how many, by implementation |", "| --- | --- | --- |"]
    for op in _ops(rows):
        winners = [row["implementation"] for row in rows if row["op"] == op]
        counts = sorted(((winners.count(name), name) for name in set(winners)), reverse=True)
        lines.append(f"| {op} | {len(winners)} | {', '.join(f'{name} {count}' for count, name in counts)} |")
    return "\n".join(lines)


def _ops(rows: Sequence[Row]) -> list[str]:
    found = {row["op"] for row in rows}
    return [*(op for op in ORDER if op in found), *sorted(found.difference(ORDER))]


def _place(dim: str) -> tuple[int, str]:
    return (DIMS.index(dim) if dim in DIMS else DIMS.index("dtype") - 1, dim)


def _line(row: Row) -> str:
    dims = sorted(row["dims"].items(), key=lambda item: _place(item[0]))
    problem = " ".join(f"{name}={value}" for name, value in dims)
    config = " ".join(f"{name}={value}" for name, value in row["config"].items()) or "-"
    figures = [
        f"{row['median_us']:.4g}",
        f"{row['fraction_of_floor']:.2f}",
        _ratio(row, TORCH),
        _ratio(row, COMPILE),
    ]
    return f"| {problem} | {row['implementation']} | {config} | {' | '.join(figures)} |"


def _ratio(row: Row, name: str) -> str:
    """The named implementation's time over the winner's; 1.00 when it is the winner."""
    if row["implementation"] == name:
        return "1.00"
    return f"{row['speedup'][name]:.2f}" if name in row["speedup"] else "-"


def _environment(rows: Sequence[Row]) -> str:
    names = ("torch", "triton", "cuda", "driver")
    ((hardware, *found),) = {(row["hardware"]["name"], *(row["software"][name] for name in names)) for row in rows}
    versions = ", ".join(f"{name} {version}" for name, version in zip(names, found, strict=True))
    dates = sorted({row["created"][:10] for row in rows})
    return f"One {hardware}; {versions}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."


def filled(text: str, rows: Sequence[Row]) -> str:
    """A page with what stands between its marks replaced by what the results say."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{summary(rows)}\n\n{table(rows)}\n{END}{after}"


def main() -> int:
    """Rewrite or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the page is out of date")
    check = parser.parse_args().check
    text = PAGE.read_text()
    wanted = filled(text, json.loads(RESULTS.read_text()))
    if not check:
        PAGE.write_text(wanted)
    return int(check and wanted != text)


if __name__ == "__main__":
    sys.exit(main())
